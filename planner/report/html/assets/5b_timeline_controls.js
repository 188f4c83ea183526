// Around the timeline: drag to pan, zoom by buttons, keys, pinch or Ctrl + wheel; what is left out; a table by rank.

function timelineEvents(canvas) {
  const pointers = new Map();
  const place = (e) => {
    const box = canvas.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (e) => {
    pointers.set(e.pointerId, place(e)[0]);
    canvas.setPointerCapture(e.pointerId);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => pointers.delete(e.pointerId));
  canvas.addEventListener("pointerleave", Tip.hide);
  canvas.addEventListener("pointermove", (e) => {
    const [x, y] = place(e);
    const text = Timeline.at(x, y);
    if (text) Tip.show(text, e.clientX, e.clientY);
    else Tip.hide();
    if (!pointers.has(e.pointerId)) return;
    if (pointers.size === 1) {
      const d = Timeline.v(pointers.get(e.pointerId)) - Timeline.v(x);
      Timeline.show(Timeline.from + d, Timeline.to + d);
    } else {
      const other = [...pointers].find(([id]) => id !== e.pointerId)[1];
      const [was, now] = [Math.abs(pointers.get(e.pointerId) - other), Math.abs(x - other)];
      if (was > 8 && now > 8) Timeline.zoom(now / was, (x + other) / 2);
    }
    pointers.set(e.pointerId, x);
  });
  canvas.addEventListener(
    "wheel",
    (e) => {
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        Timeline.zoom(Math.exp(-e.deltaY / 250), place(e)[0]);
      } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        Timeline.pan((e.deltaX || e.deltaY) / 600);
      }
    },
    { passive: false },
  );
  canvas.addEventListener("dblclick", (e) => Timeline.zoom(e.shiftKey ? 1 / 3 : 3, place(e)[0]));
  canvas.addEventListener("keydown", (e) => {
    const does = {
      ArrowLeft: () => Timeline.pan(-0.2),
      ArrowRight: () => Timeline.pan(0.2),
      "+": () => Timeline.zoom(1.6),
      "=": () => Timeline.zoom(1.6),
      "-": () => Timeline.zoom(1 / 1.6),
      0: () => Timeline.show(0, Timeline.data.length),
      Home: () => Timeline.pan(-1e9),
      End: () => Timeline.pan(1e9),
    }[e.key];
    if (does) {
      e.preventDefault();
      does();
    }
  });
}

function timelineNotes(t) {
  const notes = [
    `${seconds(t.step_s)} per step by the exact simulation of ${thousands(t.operations)} operations on ${t.ranks} pipeline rank${t.ranks === 1 ? "" : "s"} (${t.schedule}).`,
  ];
  if (t.steps > 1) notes.push(`The pipeline is never drained: ${t.steps} steps are shown.`);
  if (t.rows.length < t.ranks) notes.push(`${t.rows.length} of the ranks are drawn, the first and the last.`);
  if (t.cut !== t.left_out) notes.push("Drawn are the first and the last micro-batches; Whole step shows the others.");
  else if (t.cut)
    notes.push(
      `${thousands(t.shown)} operations are drawn, those that begin and end the step; hatched, the middle from ${seconds((t.cut[0] * t.end_s) / t.ticks)} to ${seconds((t.cut[1] * t.end_s) / t.ticks)} is left out to keep this file small.`,
    );
  return notes;
}

// Without a pipeline there is nothing to see: every GPU does the same, one pass after the other.
function alone(t) {
  const [row] = t.rows,
    lasts = (kind) => t.types.find(([k]) => k === kind)?.[2] ?? 0,
    s = (ticks) => seconds((ticks * t.end_s) / t.ticks);
  const passes = `forward ${s(lasts("F"))}, backward ${s(lasts("B") || lasts("I") + lasts("W"))}`;
  const [n, update] = [Math.max(...row.m) + 1, row.net[4] - row.net[3]];
  return `No pipeline: every GPU does the same. It runs ${n} micro-batch${n === 1 ? "" : "es"} one after the other (${passes} each), then waits ${seconds(row.comm_s)} for its replicas and updates the parameters in ${s(update)}.`;
}

// The record of a layout's timeline by its place, or null: each page's own way to it.
let timelineOf = null;

function timeline() {
  const canvas = el("canvas", { tabindex: 0, role: "img" });
  const box = el("div.chart", canvas),
    notes = el("p.lead"),
    keys = el("div.legend"),
    ranks = scrolling();
  const named = (label, name, act) => button(label, act, { "aria-label": name });
  const controls = el(
    "div.buttons",
    { role: "group", "aria-label": "Zoom of the timeline" },
    named("+", "Zoom in", () => Timeline.zoom(2)),
    named("−", "Zoom out", () => Timeline.zoom(0.5)),
    named("◀", "Earlier", () => Timeline.pan(-0.4)),
    named("▶", "Later", () => Timeline.pan(0.4)),
    named("First and last", "Show the first and last micro-batches", () => whole(true)),
    named("Whole step", "Show the whole step", () => whole(false)),
    el("span.note", "or drag, pinch, Ctrl + wheel, double click; keys + − 0 ◀ ▶"),
  );
  const empty = el("p", { hidden: true });
  let packed = null;
  const whole = (ends) => {
    Timeline.data = unpack(packed, ends);
    notes.textContent = timelineNotes(Timeline.data).join(" ");
    Timeline.show(0, Timeline.data.length);
  };
  const body = el("div", notes, controls, box, keys, folded("As a table, rank by rank", ranks));
  put("timeline-body", empty, body);
  timelineEvents(canvas);
  Timeline.canvas = canvas;
  drawn(box, (width) => {
    Timeline.width = width;
    Timeline.draw();
  });
  const draw = async () => {
    const x = Selected.layout,
      found = await timelineOf(Selected.index);
    if (Selected.layout !== x) return;
    packed = found;
    empty.hidden = !!packed && packed.ranks > 1;
    body.hidden = !empty.hidden;
    empty.textContent = packed
      ? alone(packed)
      : "This layout's step has too many operations to be simulated for a page; planner simulate draws it.";
    if (body.hidden) return;
    const t = (Timeline.data = unpack(packed, true));
    Timeline.rowHeight = t.rows.length > 16 ? 20 : t.rows.length === 1 ? 44 : 26;
    canvas.setAttribute(
      "aria-label",
      `Timeline of ${x.text}: ${timelineNotes(t).join(" ")} The table below has each rank's figures.`,
    );
    notes.textContent = timelineNotes(t).join(" ");
    const kinds = new Set(t.types.map(([kind]) => kind));
    keys.replaceChildren(
      ...Object.keys(KINDS)
        .filter((k) => kinds.has(k))
        .map((k) => swatch(k, `${k}: ${KINDS[k]}`)),
      swatch("optimizer", "optimizer step"),
      swatch("network", "thin line: parameters gathered, gradients reduced over replicas"),
    );
    ranks.replaceChildren(
      table(
        [
          ["rank", "n"],
          ["computes", "n"],
          ["idle", "n"],
          ["waits for replicas", "n"],
          ["peak GiB", "n"],
        ],
        t.rows.map((r) => ({
          cells: [String(r.r), seconds(r.busy_s), seconds(r.idle_s), seconds(r.comm_s), fixed(r.peak_gib, 2)],
        })),
      ),
    );
    Timeline.show(0, t.length);
  };
  Selected.follow(() => draw().catch((error) => put("timeline-body", el("p", `No timeline: ${error.message}`))));
}
for (const query of ["(prefers-color-scheme: dark)", "print"])
  matchMedia(query).addEventListener("change", () => Timeline.draw());
