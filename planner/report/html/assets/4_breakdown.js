// Where the selected layout's seconds and bytes go, beside the recommended one's.

const LEAST = 1e-6; // of the whole: less is rounding

function stacked(parts, whole, thin) {
  return el(
    "div",
    { class: thin ? "stack thin" : "stack", "aria-hidden": "true" },
    parts
      .filter((p) => p.value > LEAST * whole)
      .map((p) => {
        const piece = el("i", { css: { width: `${(100 * p.value) / whole}%`, background: p.paint } });
        return Tip.on(piece, () => `${p.label}: ${p.text}`);
      }),
  );
}

function partsTable(what, unit, parts, others, total) {
  const number = unit === "GiB" ? (x) => fixed(x, 2) : digits4;
  const most = Math.max(...parts.map((p) => p.value));
  const columns = [
    [what, ""],
    ["", "bar"],
    [unit, "n"],
    ["share", "n"],
  ].concat(others ? [["recommended", "n"]] : []);
  const rows = parts
    .map((p, i) => ({ p, i }))
    .filter(({ p, i }) => p.value > LEAST * total.value || (others && others[i].value > LEAST * total.other))
    .sort((a, b) => b.p.value - a.p.value)
    .map(({ p, i }) => ({
      cells: [
        p.label,
        el("div", { css: { width: `${(100 * p.value) / most}%`, background: p.paint } }),
        number(p.value),
        percent(p.value / total.value),
      ].concat(others ? [number(others[i].value)] : []),
    }));
  rows.push({
    attributes: { class: "sum" },
    cells: [total.label, "", number(total.value), percent(1)].concat(others ? [number(total.other)] : []),
  });
  return scrolling(table(columns, rows, { class: "parts" }));
}

const FAMILY = {
  compute: "computing",
  again: "computing again",
  comm: "communicating, where it shows",
  wait: "waiting",
  update: "updating",
};
const timeParts = (x) =>
  DATA.time_parts.map(([key, label, family]) => ({
    label,
    value: x.time_s[key],
    paint: `var(--${family})`,
    family,
    text: `${seconds(x.time_s[key])}, ${percent(x.time_s[key] / x.step_time_s)}`,
  }));
const memoryParts = (x) =>
  DATA.memory_parts.map((label, i) => ({
    label,
    value: x.memory_parts_gib[label],
    paint: `var(--m${i % 7})`,
    text: gib(x.memory_parts_gib[label]),
  }));
const compared = () => (BEST >= 0 && Selected.index !== BEST ? LAYOUTS[BEST] : null);

function stacks(parts, x, other, whole) {
  const recommended = other && el("p.who", `thin: the recommended ${other.text}`);
  const thin = other && [stacked(parts(other), whole, true), recommended];
  return el("div.stacks", stacked(parts(x), whole, false), thin);
}

function timeBars() {
  Selected.follow(() => {
    const x = Selected.layout,
      other = compared();
    const byFamily = (y) => Object.keys(FAMILY).flatMap((f) => timeParts(y).filter((p) => p.family === f));
    const whole = Math.max(x.step_time_s, other ? other.step_time_s : 0);
    const sums = Object.entries(FAMILY).map(([f, label]) => [
      f,
      label,
      timeParts(x)
        .filter((p) => p.family === f)
        .reduce((a, p) => a + p.value, 0),
    ]);
    put(
      "time-bars",
      stacks(byFamily, x, other, whole),
      el(
        "div.legend",
        sums
          .filter(([, , v]) => v > LEAST * x.step_time_s)
          .map(([f, label, v]) => swatch(f, `${label} ${percent(v / x.step_time_s)}`)),
      ),
      partsTable("part of the step", "seconds", timeParts(x), other ? timeParts(other) : null, {
        label: "step",
        value: x.step_time_s,
        other: other ? other.step_time_s : 0,
      }),
    );
  });
}

function memoryBars() {
  Selected.follow(() => {
    const x = Selected.layout,
      other = compared();
    const whole = Math.max(DATA.capacity_gib, x.memory_gib, other ? other.memory_gib : 0);
    const free = DATA.capacity_gib - x.memory_gib;
    put(
      "memory-bars",
      stacks(memoryParts, x, other, whole),
      el(
        "p.note",
        `The whole bar is ${gib(whole)}${whole === DATA.capacity_gib ? ", the GPU's memory" : ""}; ${free >= 0 ? `${gib(free)} free` : `${gib(-free)} too much`}.`,
      ),
      partsTable("fullest rank", "GiB", memoryParts(x), other ? memoryParts(other) : null, {
        label: "peak",
        value: x.memory_gib,
        other: other ? other.memory_gib : 0,
      }),
    );
  });
}
