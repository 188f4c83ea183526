// The simulator's exact timeline of the selected layout's step, on a canvas.

const KINDS = {
  F: "forward",
  B: "backward",
  I: "input gradient",
  W: "weight gradient",
  S: "head's logits",
  T: "head's gradients",
  U: "head's logits and input gradient",
  V: "head's weight gradient",
};
const BREAK = 0.035; // of the shown time, in the place of what is left out

// Every layout's timeline, or null, from letters to compressed bytes to JSON.
async function unpacked(letters) {
  const bytes = Uint8Array.from(atob(letters), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const SIDE = 36; // operations of a rank at each end: more can't be read

// Between which ticks a picture of the first and last micro-batches leaves the rest out; null: there is no rest.
function middle(rows, cut) {
  const all = rows.flatMap((row) => row.ops);
  const [first, last] = [Math.min(...all.map((o) => o.m)), Math.max(...all.map((o) => o.m))];
  const many = rows.filter((row) => row.ops.length > 2 * SIDE);
  const from = Math.min(
    Math.max(...all.filter((o) => o.m === first).map((o) => o.to)),
    ...many.map((row) => row.ops[SIDE].from),
  );
  const to = Math.max(
    Math.min(...all.filter((o) => o.m === last).map((o) => o.from)),
    ...many.map((row) => row.ops[row.ops.length - SIDE].from),
  );
  if (cut) return [Math.min(from, cut[0]), Math.max(to, cut[1])];
  return to > 1.2 * from ? [from, to] : null;
}

// Operations with their times, from the compact record; ends: the first and last micro-batches alone.
function unpack(t, ends) {
  const rows = t.rows.map((row) => {
    const ops = [];
    let at = 0;
    row.t.forEach((type, i) => {
      const [kind, stage, lasts] = t.types[type];
      at += row.g[i];
      ops.push({
        kind,
        stage,
        m: row.m[i],
        k: row.k ? row.k[i] : 0,
        from: at,
        to: at + lasts,
        half: row.u ? (row.u[i] ? 1 : i && row.u[i - 1] ? 2 : 0) : 0,
      });
      at += lasts;
    });
    return { ...row, ops };
  });
  const cut = ends ? middle(rows, t.cut) : t.cut;
  const gap = cut ? cut[1] - cut[0] : 0;
  const shown = t.ticks - gap;
  const wide = cut ? BREAK * shown : 0;
  return {
    ...t,
    rows,
    cut,
    left_out: t.cut,
    length: shown + wide,
    // From ticks to the drawn axis, where the part left out is a short break, and back.
    axis: (x) =>
      !cut || x <= cut[0] ? x : x >= cut[1] ? x - gap + wide : cut[0] + (wide * (x - cut[0])) / gap,
    real: (v) => (!cut || v <= cut[0] ? v : v >= cut[0] + wide ? v + gap - wide : cut[0] + ((v - cut[0]) * gap) / wide),
    seconds: (x) => (x * t.end_s) / t.ticks,
  };
}
const opName = (op, t) => `${t.chunks ? op.stage : ""}${op.kind}${op.m}${op.k ? `.${op.k}` : ""}`;

const Timeline = {
  data: null,
  from: 0,
  to: 1,
  canvas: null,
  width: 0,
  rowHeight: 24,
  top: 26,
  get margin() {
    return this.width < 520 ? 34 : 58;
  },

  x(v) {
    return this.margin + ((v - this.from) / (this.to - this.from)) * (this.width - this.margin - 2);
  },
  v(x) {
    return this.from + ((x - this.margin) / (this.width - this.margin - 2)) * (this.to - this.from);
  },

  show(from, to) {
    const whole = this.data.length,
      least = whole / 20000;
    let span = Math.min(Math.max(to - from, least), whole);
    from = Math.min(Math.max(from, 0), whole - span);
    [this.from, this.to] = [from, from + span];
    this.draw();
  },
  zoom(factor, x) {
    const centre = x === undefined ? (this.from + this.to) / 2 : this.v(x);
    const span = (this.to - this.from) / factor,
      part = (centre - this.from) / (this.to - this.from);
    this.show(centre - part * span, centre + (1 - part) * span);
  },
  pan(share) {
    const d = share * (this.to - this.from);
    this.show(this.from + d, this.to + d);
  },

  draw() {
    const t = this.data,
      canvas = this.canvas;
    if (!t || !canvas || !this.width) return;
    const style = getComputedStyle(document.documentElement),
      paint = (name) => style.getPropertyValue(`--${name}`).trim();
    const height = this.top + t.rows.length * this.rowHeight + 6,
      ratio = devicePixelRatio || 1;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = paint("page");
    g.fillRect(0, 0, this.width, height);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    this.drawAxis(g, paint, height);
    t.rows.forEach((row, i) => this.drawRow(g, paint, row, this.top + i * this.rowHeight, i));
  },

  drawAxis(g, paint, height) {
    const t = this.data;
    const parts = t.cut
      ? [
          [0, t.cut[0]],
          [t.cut[1], t.ticks],
        ]
      : [[0, t.ticks]];
    for (const [a, b] of parts) {
      const low = Math.max(a, t.real(this.from)),
        high = Math.min(b, t.real(this.to));
      if (high <= low) continue;
      const room = (this.x(t.axis(high)) - this.x(t.axis(low))) / 84;
      for (const s of ticks(t.seconds(low), t.seconds(high), Math.max(room, 1))) {
        const x = this.x(t.axis((s / t.end_s) * t.ticks));
        if (x < this.margin) continue;
        g.fillStyle = paint("grid");
        g.fillRect(x, 18, 1, height);
        g.fillStyle = paint("muted");
        g.textAlign = x > this.width - 30 ? "right" : x < this.margin + 20 ? "left" : "center";
        g.fillText(s === 0 ? "0" : seconds(s), x, 9);
      }
    }
  },

  drawRow(g, paint, row, y, index) {
    const t = this.data,
      high = this.rowHeight - 8;
    g.fillStyle = paint("muted");
    g.textAlign = "right";
    const before = index ? t.rows[index - 1].r : row.r - 1;
    g.fillText(this.width < 520 ? String(row.r) : `rank ${row.r}`, this.margin - 6, y + high / 2);
    if (row.r !== before + 1) {
      g.fillStyle = paint("line");
      g.fillRect(0, y - 2, this.width, 1);
    }
    g.save();
    g.beginPath();
    g.rect(this.margin, y - 1, this.width - this.margin, this.rowHeight);
    g.clip();
    g.fillStyle = paint("panel");
    g.fillRect(this.margin, y, this.width, high);
    if (t.cut) {
      const a = row.ops.findLast((o) => o.to <= t.cut[0])?.to ?? 0,
        b = row.ops.find((o) => o.from >= t.cut[1])?.from ?? t.cut[1];
      this.hatch(g, paint, this.x(t.axis(a)), this.x(t.axis(b)), y, high);
    }
    const [gather, reduceFrom, reduceTo, updateFrom, updateTo] = row.net.map((n) => this.x(t.axis(n)));
    this.drawOps(g, paint, row, y, high);
    g.fillStyle = paint("optimizer");
    if (updateTo > updateFrom) g.fillRect(updateFrom, y, Math.max(updateTo - updateFrom, 1), high);
    g.fillStyle = paint("network");
    const zero = this.x(0);
    if (gather > zero) g.fillRect(zero, y + high + 1, gather - zero, 3);
    if (reduceTo > reduceFrom) g.fillRect(reduceFrom, y + high + 1, Math.max(reduceTo - reduceFrom, 1), 3);
    g.restore();
  },

  drawOps(g, paint, row, y, high) {
    const t = this.data,
      colour = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, paint(kind)])),
      ink = paint("on-box");
    const low = t.real(this.from),
      top = t.real(this.to);
    g.textAlign = "center";
    for (const op of row.ops) {
      if (op.to < low || op.from > top || (t.cut && op.to > t.cut[0] && op.from < t.cut[1])) continue;
      const a = this.x(t.axis(op.from)),
        b = this.x(t.axis(op.to));
      const [up, tall] = op.half ? (op.half === 1 ? [y, high / 2] : [y + high / 2, high / 2]) : [y, high];
      g.fillStyle = colour[op.kind];
      g.fillRect(a, up, Math.max(b - a - (b - a > 3 ? 0.8 : 0), 0.4), tall);
      const room = b - a - 3;
      if (room < 7 || op.half) continue;
      const name = [opName(op, t), op.kind + op.m, String(op.m)].find((s) => s.length * 6.3 < room);
      if (!name) continue;
      g.fillStyle = ink;
      g.fillText(name, (a + b) / 2, up + tall / 2 + 0.5);
    }
  },

  hatch(g, paint, a, b, y, high) {
    a = Math.max(a, this.margin);
    b = Math.min(b, this.width);
    if (b - a < 1) return;
    g.save();
    g.beginPath();
    g.rect(a, y, b - a, high);
    g.clip();
    g.strokeStyle = paint("hatch");
    g.lineWidth = 1.2;
    g.beginPath();
    for (let x = Math.floor((a - high) / 6) * 6; x < b; x += 6) {
      g.moveTo(x, y + high);
      g.lineTo(x + high, y);
    }
    g.stroke();
    g.restore();
  },

  // What lies under a place of the canvas, in words.
  at(x, y) {
    const t = this.data,
      row = t.rows[Math.floor((y - this.top) / this.rowHeight)];
    if (!row || x < this.margin) return null;
    const time = t.real(this.v(x)),
      second = (y - this.top) % this.rowHeight > (this.rowHeight - 8) / 2;
    const under = row.ops.filter((o) => o.from <= time && time < o.to);
    const op = under.find((o) => o.half === (second ? 2 : 1)) || under[0];
    const s = (n) => seconds(t.seconds(n)),
      exact = (n) => `${Number(t.seconds(n).toPrecision(7))}\u00a0s`;
    if (op)
      return `rank ${row.r}: ${KINDS[op.kind]} of micro-batch ${op.m}${op.k ? `, slice ${op.k}` : ""}${t.chunks ? `, stage ${op.stage}` : ""}\n${exact(op.from)} to ${exact(op.to)}: ${s(op.to - op.from)}`;
    const [gather, reduceFrom, reduceTo, updateFrom, updateTo] = row.net;
    if (time >= updateFrom && time <= updateTo)
      return `rank ${row.r}: optimizer step\n${s(updateFrom)} to ${s(updateTo)}`;
    if (time >= reduceFrom && time <= reduceTo)
      return `rank ${row.r}: gradients reduced over replicas\n${s(reduceFrom)} to ${s(reduceTo)}`;
    if (time < gather) return `rank ${row.r}: parameters gathered until ${s(gather)}`;
    if (t.cut && time > t.cut[0] && time < t.cut[1]) return `left out: ${s(t.cut[0])} to ${s(t.cut[1])}`;
    return `rank ${row.r}: idle at ${s(time)}`;
  },
};
