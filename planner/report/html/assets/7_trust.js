// How accurate: errors on measured runs, what they say of this prediction; and what was assumed.

let ACCURACY;
function drawErrors(width) {
  const { counts, edges, band } = ACCURACY,
    height = 190,
    pad = { left: 12, right: 12, top: 26, bottom: 40 };
  const bottom = height - pad.bottom,
    most = Math.max(...counts),
    [low, high] = [edges[0], edges[edges.length - 1]];
  const X = (e) => pad.left + ((e - low) / (high - low)) * (width - pad.left - pad.right);
  const span = `80 % lie between ${percent(band[0])} and ${percent(band[2])}`;
  const root = picture(width, height, "img", `Errors of ${ACCURACY.runs} predicted step times: ${span}`);
  root.append(
    svg("rect", {
      x: X(band[0]),
      y: pad.top,
      width: X(band[2]) - X(band[0]),
      height: bottom - pad.top,
      fill: "var(--accent)",
      opacity: 0.12,
    }),
    caption(
      Math.min(Math.max((X(band[0]) + X(band[2])) / 2, 120), width - 120),
      15,
      `80 %: ${fixed(100 * band[0], 1)} to +${fixed(100 * band[2], 1)} %`,
      "middle",
      { class: "strong" },
    ),
  );
  counts.forEach(
    (n, i) =>
      n &&
      root.append(
        svg("rect", {
          x: X(edges[i]) + 0.5,
          y: bottom - (n / most) * (bottom - pad.top),
          width: Math.max(X(edges[i + 1]) - X(edges[i]) - 1, 1),
          height: (n / most) * (bottom - pad.top),
          fill: "var(--compute)",
        }),
      ),
  );
  for (const e of width < 480 ? [-0.4, -0.2, 0, 0.2, 0.4] : [-0.4, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4])
    root.append(
      caption(X(e), bottom + 16, `${e > 0 ? "+" : ""}${Math.round(100 * e)} %`, e === low ? "start" : e === high ? "end" : "middle"),
    );
  root.append(
    svg("line", { x1: X(0), x2: X(0), y1: pad.top, y2: bottom, stroke: "var(--ink)" }),
    svg("line.axis", { x1: pad.left, x2: width - pad.right, y1: bottom, y2: bottom }),
    caption(width / 2, height - 6, "predicted over measured step time, less 1"),
  );
  byId("errors").replaceChildren(root);
}

function accuracy() {
  ACCURACY = DATA.accuracy;
  const own = el("p");
  Selected.follow(() => {
    if (!LAYOUTS.length || !Selected.layout.interval_s) return;
    own.replaceChildren(
      "In 80\u00a0% of cases like the layout shown the step takes ",
      el("strong", intervalText(Selected.layout)),
      ` (predicted: ${seconds(Selected.layout.step_time_s)}), by fits that had not seen the runs; the runs most like it count most.`,
    );
  });
  const columns = [
    ["source", "mono"],
    ["runs", "n"],
    ["timed", "n"],
    ["mean error", "n"],
    ["bias", "n"],
    ["worst", "n"],
    ["rank correlation", "n"],
  ];
  const rows = ACCURACY.sources.map(([name, runs, timed, mape, bias, worst, rank]) => ({
    cells: [
      name,
      String(runs),
      String(timed),
      ...[mape, bias, worst].map((e) => (e === null ? null : percent(e))),
      rank === null ? null : fixed(rank, 3),
    ],
  }));
  const sentence = ACCURACY.sentence;
  put(
    "accuracy-body",
    el("p", (sentence[0].toUpperCase() + sentence.slice(1)).replaceAll(" %", "\u00a0%")),
    own,
    ACCURACY.counts ? el("div", { id: "errors", class: "chart" }) : null,
    ACCURACY.counts
      ? el(
          "p.note",
          "The picture is of the fit itself, for these runs also calibrated the profile. On runs held out of a fit errors are larger: the interval above is made of those (docs/accuracy.md).",
        )
      : null,
    rows.length ? folded("By source of measured runs", scrolling(table(columns, rows))) : null,
  );
  if (ACCURACY.counts) drawn(byId("errors"), drawErrors);
}

function assumed() {
  const listed = (rows, ...columns) =>
    scrolling(table(columns, rows.map((cells) => ({ cells })), { class: "stacking" }));
  const training = CURVE && [
    el("h3", "Of the training time"),
    listed(CURVE.assumed, ["option", "mono"], ["value", "n"], ["unit", ""], ["source", ""]),
  ];
  const figures = listed(DATA.figures, ["figure", "mono"], ["value", "n"], ["source", ""]);
  put(
    "assumed-body",
    el(
      "p.lead",
      "Estimates are closed forms over the figures below, the step then an exact timeline. Each figure says where it comes from.",
    ),
    training,
    folded(`The cluster's ${DATA.figures.length} figures`, figures),
  );
}
