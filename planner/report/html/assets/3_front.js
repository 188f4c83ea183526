// Step time against memory: hover or focus names a layout, click, Enter or the arrow keys select it.

function mark(x, size) {
  const kind = x.roles.includes("best") ? "best" : !x.fits ? "over" : x.roles.includes("front") ? "front" : "top";
  const s = size || { best: 9, over: 7, front: 5.5, top: 5 }[kind];
  const paint = { best: "var(--accent)", over: "var(--page)", front: "var(--accent)", top: "var(--page)" }[kind];
  const stroke = kind === "over" ? "var(--bad)" : "var(--accent)";
  if (kind === "best")
    return svg("path", {
      d: `M0 ${-s}L${s} 0L0 ${s}L${-s} 0Z`,
      fill: paint,
      stroke: "var(--page)",
      "stroke-width": 1.5,
    });
  if (kind === "over")
    return svg("path", { d: `M0 ${-s}L${s} ${s * 0.8}L${-s} ${s * 0.8}Z`, fill: paint, stroke, "stroke-width": 2 });
  return svg("circle", { r: s, fill: paint, stroke, "stroke-width": 2 });
}
const pointText = (x) =>
  `${x.text}\n${seconds(x.step_time_s)} per step, ${gib(x.memory_gib)}${x.fits ? "" : ", does not fit"}`;

const Front = { near: true, redraw: null };

function frontRange() {
  const fitting = LAYOUTS.filter((x) => x.fits);
  const fastest = Math.min(...LAYOUTS.map((x) => x.step_time_s));
  const near = fitting.filter((x) => x.step_time_s <= 2 * fastest);
  const all = Math.max(...LAYOUTS.map((x) => x.step_time_s));
  return { fastest, all, split: near.length >= 3 && all > 2.5 * fastest };
}

function drawFront(width) {
  const box = byId("front"),
    range = frontRange();
  const top = range.split && Front.near ? 2 * range.fastest : range.all * 1.05;
  const drawnOnes = LAYOUTS.map((x, i) => [x, i]).filter(
    ([x]) => x.step_time_s <= top && x.memory_gib > 0 && (BEST < 0 || x.memory_gib < 1.6 * DATA.capacity_gib),
  );
  const most = Math.max(DATA.capacity_gib * 1.04, ...drawnOnes.map(([x]) => x.memory_gib * 1.04));
  const cloud = [];
  for (let i = 0; i < DATA.cloud.length; i += 2) cloud.push([DATA.cloud[i], DATA.cloud[i + 1]]);
  const shown = cloud.filter(([m, t]) => m < most && t < top && t > range.fastest / 2);
  const least = Math.min(range.fastest, ...shown.map(([, t]) => t)); // what is faster takes too much memory
  const low = least / (top / least) ** 0.06;
  const height = Math.round(Math.min(400, Math.max(280, width * 0.62)));
  const pad = { left: 76, right: 14, top: 14, bottom: 44 };
  const X = (m) => pad.left + (m / most) * (width - pad.left - pad.right);
  const bottom = height - pad.bottom;
  const Y = logScale(low, top, bottom, pad.top);
  const what = "Step time against memory, each point a layout; arrow keys move between them";
  const root = picture(width, height, "group", what);
  for (const m of ticks(0, most, width < 420 ? 4 : 7)) root.append(...gridAtX(X(m), pad.top, bottom, String(m)));
  for (const t of logTicks(low, top)) root.append(...gridAtY(Y(t), pad.left, width - pad.right, seconds(t)));
  root.append(
    caption((pad.left + width - pad.right) / 2, height - 8, "memory of the fullest rank, GiB"),
    caption(0, 0, "seconds per step", "middle", { transform: `translate(13 ${(pad.top + bottom) / 2}) rotate(-90)` }),
    svg("rect", {
      x: X(DATA.capacity_gib),
      y: pad.top,
      width: Math.max(width - pad.right - X(DATA.capacity_gib), 0),
      height: bottom - pad.top,
      fill: "var(--bad)",
      opacity: 0.08,
    }),
    svg("line", {
      x1: X(DATA.capacity_gib),
      x2: X(DATA.capacity_gib),
      y1: pad.top,
      y2: bottom,
      stroke: "var(--bad)",
      "stroke-dasharray": "5 4",
    }),
  );
  let dots = "";
  for (const [m, t] of shown) dots += `M${X(m).toFixed(1)} ${Y(t).toFixed(1)}h0`;
  root.append(
    svg("path", {
      d: dots,
      stroke: "var(--wait)",
      "stroke-width": 4,
      "stroke-linecap": "round",
      opacity: 0.35,
      fill: "none",
      "aria-hidden": "true",
    }),
  );
  const line = drawnOnes
    .filter(([x]) => x.roles.includes("front"))
    .map(([x]) => [X(x.memory_gib), Y(x.step_time_s)])
    .sort((a, b) => a[0] - b[0]);
  root.append(
    svg("path", {
      d: line.map(([x, y], i) => (i ? `V${y}H${x}` : `M${x} ${y}`)).join(""),
      fill: "none",
      stroke: "var(--accent)",
      "stroke-width": 1.5,
      opacity: 0.7,
    }),
  );
  drawnOnes
    .slice()
    .sort(([, a], [, b]) => (a === BEST) - (b === BEST))
    .forEach(([x, i]) => root.append(frontPoint(x, i, X(x.memory_gib), Y(x.step_time_s), drawnOnes)));
  box.replaceChildren(root);
}

function frontPoint(x, i, at, up, all) {
  const on = i === Selected.index;
  const node = svg(
    "g.point",
    {
      transform: `translate(${at} ${up})`,
      role: "button",
      tabindex: on || (!all.some(([, j]) => j === Selected.index) && i === all[0][1]) ? 0 : -1,
      "aria-label": pointText(x).replace("\n", ", "),
      "aria-pressed": String(on),
      "data-layout": i,
    },
    svg("circle", { r: 13, fill: "transparent" }),
    svg("circle.ring", { r: 12, fill: "none", stroke: on ? "var(--ink)" : "none", "stroke-width": 2 }),
    mark(x),
  );
  const choose = (j) => {
    Selected.choose(j);
    byId("front").querySelector(`[data-layout="${j}"]`)?.focus();
  };
  node.addEventListener("click", () => Selected.choose(i));
  node.addEventListener("keydown", (e) => {
    const order = all.map(([, j]) => j),
      here = order.indexOf(i);
    const to = {
      ArrowRight: here - 1,
      ArrowUp: here + 1,
      ArrowLeft: here + 1,
      ArrowDown: here - 1,
      Home: 0,
      End: order.length - 1,
    }[e.key];
    if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      choose(i);
    }
    if (to !== undefined && order[to] !== undefined) {
      e.preventDefault();
      Tip.hide();
      choose(order[to]);
    }
  });
  return Tip.on(node, () => pointText(x));
}

function frontLegend() {
  const item = (roles, fits, text) =>
    el(
      "span",
      svg(
        "svg",
        { width: 18, height: 18, viewBox: "-9 -9 18 18", "aria-hidden": "true" },
        mark({ roles, fits }, roles[0] === "best" ? 7 : 5),
      ),
      text,
    );
  const has = (test) => LAYOUTS.some(test);
  const range = frontRange();
  const zoom = (label, near) =>
    button(
      label,
      () => {
        Front.near = near;
        frontLegend();
        Front.redraw();
      },
      { "aria-pressed": String(Front.near === near) },
    );
  put(
    "front-legend",
    BEST >= 0 ? item(["best"], true, "recommended") : null,
    has((x) => x.roles.includes("front")) ? item(["front"], true, "on the front") : null,
    has((x) => x.roles.includes("top") && !x.roles.includes("front")) ? item(["top"], true, "nearly as fast") : null,
    has((x) => !x.fits) ? item(["miss"], false, "does not fit") : null,
    !DATA.cloud.length
      ? null
      : el(
          "span",
          el("i.swatch", {
            css: { background: "var(--wait)", opacity: ".5", width: "7px", height: "7px", "border-radius": "9px" },
          }),
          `others, a few of ${thousands(DATA.searched)}`,
        ),
    range.split
      ? el(
          "div.buttons",
          { role: "group", "aria-label": "Range" },
          zoom("Within twice the fastest", true),
          zoom("All", false),
        )
      : null,
  );
}

function frontTable() {
  Selected.follow(() =>
    put(
      "front-table",
      table(
        [
          ["layout", "mono"],
          ["step", "n"],
          ["80 % of such", "n"],
          [MFU_NAME, "n"],
          ["GiB", "n"],
          ["", ""],
        ],
        LAYOUTS.map((x, i) => ({
          attributes: { class: i === Selected.index ? "on" : null },
          cells: [
            button(x.text, () => Selected.choose(i), { class: "link mono" }),
            seconds(x.step_time_s),
            intervalText(x),
            mfu(x),
            fixed(x.memory_gib, 2),
            x.roles.map((r) => ROLES[r][0]).join(", ") + (x.fits ? "" : "; does not fit"),
          ],
        })),
      ),
      DATA.counted.map((line) => el("p.note", line.replaceAll(" %", "\u00a0%"))),
      DATA.front_points > LAYOUTS.filter((x) => x.roles.includes("front")).length
        ? el(
            "p.note",
            `The front has ${DATA.front_points} layouts; those shown lie evenly along it, both ends among them.`,
          )
        : null,
    ),
  );
}

function front() {
  if (!LAYOUTS.length) return;
  frontLegend();
  Front.redraw = drawn(byId("front"), drawFront);
  Selected.follow(() => {
    const range = frontRange();
    if (range.split && Front.near && Selected.layout.step_time_s > 2 * range.fastest) {
      Front.near = false;
      frontLegend();
    }
    const held = byId("front").contains(document.activeElement);
    Front.redraw();
    if (held) byId("front").querySelector(`[data-layout="${Selected.index}"]`)?.focus();
  });
  frontTable();
}
