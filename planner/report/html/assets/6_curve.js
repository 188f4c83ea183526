// The shortest time to train against GPUs, each point with the best batch and layout there.

let CURVE, KNEE;
const DURATIONS = [
  [1 / 24, "1 h"],
  [1 / 8, "3 h"],
  [0.5, "12 h"],
  [1, "1 day"],
  [3, "3 days"],
  [10, "10 days"],
  [30, "30 days"],
  [100, "100 days"],
  [365, "1 year"],
  [1095, "3 years"],
  [3650, "10 years"],
  [36500, "100 years"],
];
const pointLines = (p) =>
  `${thousands(p.gpus)} GPUs: ${days(p.days)}\n${p.text}, batch ${thousands(p.batch)}\n${MFU_NAME} ${mfu(p)}, goodput ${percent(p.goodput)}, ${count(p.gpu_hours)} GPU-hours${p.cost_usd === null ? "" : `, ${count(p.cost_usd)} USD`}\nwhat binds: ${bindsText(p)}`;
const bindsText = (p) => (p.binds[0] === "compute" ? "computing" : `${p.binds[0]} (${percent(p.binds[1], 0)})`);

function drawCurve(width) {
  const points = CURVE.by_gpus,
    height = Math.round(Math.min(380, Math.max(270, width * 0.42)));
  const pad = { left: 70, right: 20, top: 16, bottom: 44 },
    bottom = height - pad.bottom;
  const gpus = points.map((p) => p.gpus),
    times = points.map((p) => p.days);
  const [x0, x1] = [Math.min(...gpus, CURVE.here_gpus) / 1.15, Math.max(...gpus, CURVE.here_gpus) * 1.15],
    [y0, y1] = [Math.min(...times) / 1.25, Math.max(...times) * 1.25];
  const X = logScale(x0, x1, pad.left, width - pad.right),
    Y = logScale(y0, y1, bottom, pad.top);
  const root = picture(width, height, "group", "Shortest training time against GPUs, both on logarithmic scales");
  for (const v of logTicks(x0, x1, width < 480 ? 5 : 8)) root.append(...gridAtX(X(v), pad.top, bottom, thousands(v)));
  for (const [v, label] of DURATIONS.filter(([v]) => v >= y0 && v <= y1))
    root.append(...gridAtY(Y(v), pad.left, width - pad.right, label));
  const here = X(CURVE.here_gpus),
    late = here > width * 0.7;
  root.append(
    caption((pad.left + width - pad.right) / 2, height - 8, "GPUs"),
    svg("line", { x1: here, x2: here, y1: pad.top, y2: bottom, stroke: "var(--muted)", "stroke-dasharray": "4 4" }),
    caption(here + (late ? -6 : 6), pad.top + 10, `asked: ${thousands(CURVE.here_gpus)}`, late ? "end" : "start"),
    through(points.map((p) => [X(p.gpus), Y(p.days)])),
  );
  points.forEach((p, i) => {
    const knee = i === CURVE.knee && KNEE,
      [x, y] = [X(p.gpus), Y(p.days)];
    root.append(dot(x, y, () => pointLines(p), knee ? { r: 7, fill: "var(--accent)" } : {}));
    if (knee) root.append(caption(x + 6, y - 12, "knee", x > width - 60 ? "end" : "start", { class: "strong" }));
  });
  byId("curve-chart").replaceChildren(root);
}

// The reader's own GPUs, days and dollars.
function ownTraining() {
  const x = CURVE.own;
  if (!x) return null;
  return el(
    "div.figures",
    figure("On these GPUs", days(x.days), `${count(x.tokens)} tokens on ${thousands(x.gpus)} GPUs`),
    figure("GPU-hours", count(x.gpu_hours), `goodput ${percent(x.goodput)}: failures and checkpoints counted`),
    x.cost_usd === null
      ? figure("Cost", "not known", "no price of these GPUs is known: planner time --price takes one")
      : figure("Cost", `${count(x.cost_usd)} USD`, "at the cluster's price"),
  );
}

function curve() {
  CURVE = DATA.curve;
  KNEE = CURVE && CURVE.by_gpus && CURVE.knee < CURVE.by_gpus.length - 1; // else it may lie beyond the search
  byId("curve").hidden = !CURVE;
  if (!CURVE) return;
  const own = ownTraining(),
    laws = CURVE.laws.map((line) => el("li", line));
  if (!CURVE.by_gpus) return put("curve-body", own, CURVE.none ? el("p", CURVE.none) : null, el("ul.plain.note", laws));
  const last = CURVE.by_gpus[CURVE.by_gpus.length - 1];
  const priced = CURVE.by_gpus.some((p) => p.cost_usd !== null);
  const columns = [
    ["GPUs", "n"],
    ["time", "n"],
    ["batch", "n"],
    [MFU_NAME, "n"],
    ["GPU-hours", "n"],
    ...(priced ? [["USD", "n"]] : []),
    ["layout", "mono"],
    ["what binds", ""],
  ];
  const points = CURVE.by_gpus.map((p, i) => ({
    cells: [
      thousands(p.gpus),
      days(p.days),
      thousands(p.batch),
      mfu(p),
      count(p.gpu_hours),
      ...(priced ? [p.cost_usd === null ? null : count(p.cost_usd)] : []),
      p.text,
      bindsText(p) + (i === CURVE.knee && KNEE ? " – knee" : ""),
    ],
  }));
  put(
    "curve-body",
    own,
    el("h3", "The shortest time"),
    el(
      "p.lead",
      `${days(last.days)} on ${thousands(last.gpus)} GPUs, with the best batch and layout for each number of GPUs; failures and checkpoints counted, and the more tokens that a larger batch takes. ${KNEE ? "Beyond the knee more GPUs save little." : "More GPUs would still save much: the search ended there."}`,
    ),
    el("div", { id: "curve-chart", class: "chart" }),
    folded("As a table", scrolling(table(columns, points))),
    el(
      "ul.plain.note",
      laws,
      el(
        "li",
        `${thousands(CURVE.searched)} combinations of GPUs, batch and layout were searched; what binds: the constraint whose doubling helps most, and the time it saves`,
      ),
    ),
  );
  drawn(byId("curve-chart"), drawCurve);
}
