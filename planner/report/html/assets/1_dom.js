// Elements, numbers as text, and the tooltip. All text goes through textContent: nothing of the data is ever markup.

const SVG = "http://www.w3.org/2000/svg";

// Makes elements: "p.note" is of a class; attributes, if any, stand before the children, of which null is none.
const made = (create) => (name, ...parts) => {
  const [tag, ...classes] = name.split(".");
  const node = create(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "css") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of parts.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
};
const el = made((tag) => document.createElement(tag));
const svg = made((tag) => document.createElementNS(SVG, tag));
const button = (text, act, more) => el("button", { type: "button", onclick: act, ...more }, text);
const swatch = (paint, text) => el("span", el("i.swatch", { css: { background: `var(--${paint})` } }), text);
const byId = (id) => document.getElementById(id);
const put = (id, ...children) =>
  byId(id).replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined));

const fixed = (x, digits) =>
  x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const thousands = (x) => x.toLocaleString("en-US", { maximumFractionDigits: 2 });
const digits4 = (x) => (Math.abs(x) >= 1000 ? fixed(x, 0) : String(Number(x.toPrecision(4))));
const percent = (x, digits = 1) => `${fixed(100 * x, digits)}\u00a0%`;
const gib = (x) => `${fixed(x, 2)}\u00a0GiB`;
function seconds(t) {
  const s = Math.abs(t),
    sp = "\u00a0";
  if (s === 0) return "0 s";
  if (s < 1e-3) return `${digits4(t * 1e6)}${sp}µs`;
  if (s < 1) return `${digits4(t * 1e3)}${sp}ms`;
  if (s < 3600) return `${digits4(t)}${sp}s`;
  return s < 172800 ? `${fixed(t / 3600, 1)}${sp}h` : `${fixed(t / 86400, 1)}${sp}days`;
}
const days = (d) => seconds(d * 86400);
function count(x) {
  for (const [unit, name] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "K"],
  ]) {
    if (Math.abs(x) >= 0.9995 * unit) return Number((x / unit).toPrecision(3)) + name;
  }
  return String(Number(x.toPrecision(3)));
}

// A table: columns are [heading, "n" for numbers]; cells are text or nodes.
function table(columns, rows, attributes) {
  const headed = ([name, kind]) => (name ? el("th", { scope: "col", class: kind }, name) : el("td", { class: kind }));
  const head = el("tr", columns.map(headed));
  const body = rows.map((row) =>
    el(
      "tr",
      row.attributes,
      row.cells.map((cell, i) => el("td", { class: columns[i][1] }, cell === null ? "–" : cell)),
    ),
  );
  return el("table", attributes, el("thead", head), el("tbody", body));
}

const scrolling = (...inside) => el("div.wide", { tabindex: 0 }, inside);
const folded = (line, ...inside) => el("details.table", el("summary", line), inside);

const Tip = {
  show(text, x, y) {
    const tip = byId("tip");
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(x + 14, 6), innerWidth - box.width - 6);
    const top = y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16;
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(top, 4)}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
  // Shown by the pointer and by the keyboard's focus.
  on(node, text) {
    node.addEventListener("pointermove", (e) => Tip.show(text(), e.clientX, e.clientY));
    node.addEventListener("pointerleave", Tip.hide);
    node.addEventListener("focus", () => {
      if (!node.matches(":focus-visible")) return;
      const box = node.getBoundingClientRect();
      Tip.show(text(), box.right - 10, box.bottom - 10);
    });
    node.addEventListener("blur", Tip.hide);
    return node;
  },
};

// Draw now and whenever the box gets another width; what was drawn there before is drawn no more.
const Watched = new WeakMap();
function drawn(box, draw) {
  let width = 0;
  const again = () => {
    const now = Math.round(box.clientWidth);
    if (now && now !== width) draw((width = now));
  };
  Watched.get(box)?.disconnect();
  Watched.set(box, new ResizeObserver(again));
  Watched.get(box).observe(box);
  again();
  return () => draw(width || Math.round(box.clientWidth));
}

// About `most` round numbers between two, or round powers on a logarithmic axis.
function ticks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); i++)
    out.push(Number((i * step).toPrecision(12)));
  return out;
}
function logTicks(low, high, most = 7) {
  for (const heads of [[1, 2, 5], [1, 3], [1]]) {
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const h of heads)
        if (h * 10 ** e >= low * 0.999 && h * 10 ** e <= high * 1.001) out.push(Number((h * 10 ** e).toPrecision(3)));
    if (out.length >= 2 && out.length <= most) return out;
  }
  return high / low < 5 ? ticks(low, high, 5) : logTicks(low, high, 40);
}

// From values on a logarithmic axis to places on it.
const logScale = (low, high, from, to) => (v) => from + (Math.log(v / low) / Math.log(high / low)) * (to - from);

// A chart's picture, and the grid lines and labels of its axes at a place of each.
const picture = (width, height, role, label) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label });
const caption = (x, y, text, anchor = "middle", more = {}) => svg("text", { x, y, "text-anchor": anchor, ...more }, text);
const gridAtX = (x, top, bottom, text) => [
  svg("line.grid", { x1: x, x2: x, y1: top, y2: bottom }),
  caption(x, bottom + 17, text),
];
const gridAtY = (y, left, right, text) => [
  svg("line.grid", { x1: left, x2: right, y1: y, y2: y }),
  caption(left - 8, y + 4, text, "end"),
];
// A line through points [x, y], and one of them: its ring, what a finger can hit, and its text on it and for who can't see.
const through = (points) =>
  svg("path", {
    d: points.map(([x, y], i) => `${i ? "L" : "M"}${x} ${y}`).join(""),
    fill: "none",
    stroke: "var(--accent)",
    "stroke-width": 2,
  });
const dot = (x, y, text, ring) =>
  Tip.on(
    svg(
      "g.point",
      { tabindex: 0, role: "img", "aria-label": text().replaceAll("\n", ", "), transform: `translate(${x} ${y})` },
      svg("circle", { r: 13, fill: "transparent" }),
      svg("circle.ring", { r: 5, fill: "var(--page)", stroke: "var(--accent)", "stroke-width": 2, ...ring }),
    ),
    text,
  );
