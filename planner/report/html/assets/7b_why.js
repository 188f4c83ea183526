// Why not otherwise: the reason, and what differs part by part.

const LEAST_SHOWN = 0.001; // of the whole

function differences(names, unit, best, other, total) {
  const all = names.map(([key, label]) => [label, best[key] ?? 0, other[key] ?? 0]);
  const whole = Math.max(total[1], total[2]);
  const told = all.filter(([, a, b]) => Math.abs(b - a) >= LEAST_SHOWN * whole).sort((x, y) => Math.abs(y[2] - y[1]) - Math.abs(x[2] - x[1]));
  const signed = (x) => `${x < 0 ? "−" : "+"}${digits4(Math.abs(x))}`;
  const row = ([label, a, b], attributes) => ({ attributes, cells: [label, digits4(a), digits4(b), signed(b - a)] });
  const columns = [[unit, ""], ["the best", "n"], ["this", "n"], ["difference", "n"]];
  return scrolling(table(columns, [...told.map((x) => row(x, null)), row(total, { class: "sum" })]));
}

function whyNodes(why) {
  const x = why.layout, y = why.best;
  const asked = Object.entries(why.wanted).map(([k, v]) => `${k} ${typeof v === "boolean" ? (v ? "on" : "off") : v}`);
  return [
    el("h3", `Why not ${asked.join(", ")}?`),
    el("p.verdict", why.text.replaceAll(" %", "\u00a0%")),
    x ? el("p", el("span.mono", x.text), `: ${seconds(x.step_time_s)} per step, ${MFU_NAME} ${mfu(x)}, ${gib(x.memory_gib)} per GPU, fits in ${x.fits_in} of such cases.`) : null,
    x && y && why.reason !== "chosen"
      ? el(
          "div.two",
          el("div", differences(DATA.time_parts, "seconds per step", y.time_s, x.time_s, ["step", y.step_time_s, x.step_time_s])),
          el("div", differences(Object.keys(x.memory_parts_gib).map((k) => [k, k]), "GiB per GPU", y.memory_parts_gib, x.memory_parts_gib, ["peak", y.memory_gib, x.memory_gib])),
        )
      : null,
  ];
}

function answers() {
  byId("why").hidden = !DATA.answers.length;
  put("why-body", DATA.answers.map((x) => el("div", whyNodes(x))));
}
