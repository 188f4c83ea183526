// Curves: the best layout along GPUs, batch or bandwidth, searched when somebody asks for one.

const AXES = { gpus: ["GPUs", "GPUs"], batch: ["Batch", "sequences per step"], bandwidth: ["Network", "Gb/s per NIC"] };
const askAlong = asker();

function along() {
  const told = el("div", { role: "status", "aria-live": "polite" });
  const buttons = Object.entries(AXES).map(([axis, [name]]) =>
    button(`Along ${axis === "gpus" ? "GPUs" : name.toLowerCase()}`, () => {
      told.replaceChildren(el("p.note", "Searching at each point: this takes seconds…"));
      askAlong("/along", { question: { ...State.texts }, axis }).then((x) => drawAlong(told, x)).catch((error) => {
        if (error.name !== "AbortError") told.replaceChildren(el("p.note", error.message));
      });
    }, { id: `along-${axis}` }));
  put("along-body", el("div.buttons", buttons), told);
}

function drawAlong(box, { axis, asked, points }) {
  const found = points.filter((p) => !p.none), [name, unit] = AXES[axis];
  const chart = el("div.chart");
  const rows = points.map((p) => ({
    attributes: p.x === asked ? { class: "strong" } : null,
    cells: p.none ? [thousands(p.x), "–", "–", "–", p.none] : [thousands(p.x), seconds(p.step_s), thousands(Math.round(p.tokens_per_s_per_gpu)), gib(p.memory_gib), p.text],
  }));
  const cells = table([[unit[0].toUpperCase() + unit.slice(1), "n"], ["Step", "n"], ["Tokens/s per GPU", "n"], ["Memory", "n"], ["Layout", ""]], rows);
  box.replaceChildren(chart, el("div.wide", { tabindex: 0, role: "region", "aria-label": `The best along ${name}` }, cells));
  if (found.length > 1) drawn(chart, (width) => chart.replaceChildren(alongPicture(width, found, asked, unit)));
}

function alongPicture(width, points, asked, unit) {
  const height = 260, pad = { left: 70, right: 24, top: 16, bottom: 44 }, bottom = height - pad.bottom;
  const rate = (p) => p.tokens_per_s_per_gpu, most = Math.max(...points.map(rate)) * 1.1;
  const [low, high] = [points[0].x / 1.2, points[points.length - 1].x * 1.2];
  const X = logScale(low, high, pad.left, width - pad.right);
  const Y = (v) => bottom - (v / most) * (bottom - pad.top);
  const root = picture(width, height, "group", `Tokens per second and GPU against ${unit}, a logarithmic scale`);
  for (const p of points) root.append(...gridAtX(X(p.x), pad.top, bottom, thousands(p.x)));
  for (const v of ticks(0, most, 4)) root.append(...gridAtY(Y(v), pad.left, width - pad.right, thousands(v)));
  root.append(
    caption((pad.left + width - pad.right) / 2, height - 8, `${unit}; up: tokens/s per GPU`),
    through(points.map((p) => [X(p.x), Y(rate(p))])),
  );
  for (const p of points)
    root.append(dot(X(p.x), Y(rate(p)), () => `${thousands(p.x)} ${unit}: ${seconds(p.step_s)}\n${p.text}`, p.x === asked ? { fill: "var(--accent)" } : {}));
  return root;
}
