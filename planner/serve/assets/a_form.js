// The form, and the address: every field is a text, and the address holds those that aren't empty.

const FORM = JSON.parse(byId("form-data").textContent);
const FIELDS = FORM.groups.flatMap((group) => group.fields);
const PIN = "pin"; // the pinned layout's place in the address
const State = {
  texts: {},
  pin: "",
  read() {
    const said = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    this.pin = said[PIN] ?? "";
    this.texts = {};
    for (const f of FIELDS) if (said[f.name] ?? f.default) this.texts[f.name] = said[f.name] ?? f.default;
    if (this.texts.config) delete this.texts.model;
  },
  write() {
    const hash = new URLSearchParams({ ...this.texts, ...(this.pin ? { [PIN]: this.pin } : {}) });
    history.replaceState(null, "", `#${hash}`);
  },
};

const HALF = ["gpus", "seq_len", "batch", "batch_in", "max_memory_gib", "headroom_gib", "precision", "attention"]; // two in a row
const option = (value, text) => el("option", { value }, text ?? value);
const control = (f, kind, attributes) => ({
  select: () =>
    el("select", attributes, f.default ? null : option("", kind === "flag" ? "" : "as usual"), f.values.map((v) => option(v))),
  area: () => el("textarea", { ...attributes, rows: 3, spellcheck: "false" }),
  number: () => el("input", { ...attributes, type: "number", min: 1, step: 1, inputmode: "numeric" }),
  flag: () => el("input", { ...attributes, type: "checkbox" }),
  decimal: () => el("input", { ...attributes, type: "text", inputmode: "decimal", autocomplete: "off" }),
  text: () => el("input", { ...attributes, type: "text", autocomplete: "off", spellcheck: "false" }),
})[kind]();

// A choice of the search: any value, only some, or not some; its text is "", "4,8" or "!8".
function choiceField(f) {
  const on = f.values.length === 2 && f.values[0] === "on";
  const modes = [["", "any"], ["only", "only"], ["not", "not"]].slice(0, on ? 2 : 3);
  const mode = el("select", { id: `mode-${f.name}`, "aria-label": `${f.label}: any, only or not` }, modes.map(([v, t]) => option(v, t)));
  const list = f.values.length && !on ? el("datalist", { id: `list-${f.name}` }, f.values.map((v) => option(v))) : null;
  const value = on
    ? el("select", { "aria-label": `${f.label}: value` }, f.values.map((v) => option(v)))
    : el("input", {
        type: "text", autocomplete: "off", spellcheck: "false", list: list ? list.id : null, "aria-label": `${f.label}: values`,
        placeholder: f.values.length ? f.values.slice(0, 2).join(",") : "such as 4,8",
      });
  value.id = `field-${f.name}`;
  const node = el("fieldset.field", el("legend", f.label), el("div", mode, value), list, el("p.says", f.says));
  const show = () => { value.hidden = !mode.value; };
  mode.addEventListener("input", () => { show(); if (mode.value && !value.value) value.focus(); });
  return {
    node,
    get: () => (!mode.value || !value.value.trim() ? "" : (mode.value === "not" ? "!" : "") + value.value.trim()),
    set: (text) => {
      mode.value = !text ? "" : text.startsWith("!") ? "not" : "only";
      if (text || !on) value.value = text.replace(/^!/, "");
      show();
    },
  };
}

function plainField(f) {
  const id = `field-${f.name}`, says = f.says || f.kind === "decimal" ? el("p.says", { id: `says-${f.name}` }, f.says) : null;
  const node = control(f, f.kind, { id, "aria-describedby": says ? says.id : null });
  const flag = f.kind === "flag";
  const label = el("label", { for: id }, flag ? [node, f.label] : f.label);
  return {
    node: el("div", { class: `field ${f.kind}${HALF.includes(f.name) || f.kind === "decimal" ? " half" : ""}` }, label, flag ? null : node, says),
    get: () => (flag ? (node.checked ? "on" : "") : node.value.trim()),
    set: (text) => { if (flag) node.checked = text === "on"; else node.value = text; },
  };
}

// What a figure is in the cluster's profile stands below it; a figure that leaves the profile is marked.
function markFigures(profile) {
  for (const [name, own] of Object.entries(profile)) {
    const given = State.texts[name], other = given !== undefined && Number(given) !== own;
    const box = byId(`field-${name}`), told = own === null ? "not in the profile" : `profile: ${Number(own.toPrecision(6))}`;
    box.parentElement.classList.toggle("changed", other);
    box.placeholder = own === null ? "" : String(own);
    byId(`says-${name}`).textContent = other ? `changed; ${told}` : told;
  }
}

const Controls = new Map();
function drawForm(changed) {
  for (const f of FIELDS) Controls.set(f.name, f.kind === "choice" ? choiceField(f) : plainField(f));
  const narrow = matchMedia("(max-width: 880px)").matches;
  put("form", FORM.groups.map((group, i) =>
    el("details", { open: i === 0 || (group.title === "Memory" && !narrow) }, el("summary", group.title), el("div.fields", group.fields.map((f) => Controls.get(f.name).node))),
  ), el("div.buttons", button("Start anew", () => { history.replaceState(null, "", "#"); showState(); changed(0); })));
  byId("form").addEventListener("submit", (e) => { e.preventDefault(); readForm(); changed(0); });
  byId("form").addEventListener("input", (e) => { readForm(); changed(e.target.matches("select, [type=checkbox]") ? 0 : 250); });
}
function readForm() {
  State.texts = {};
  for (const [name, c] of Controls) if (c.get()) State.texts[name] = c.get();
  if (State.texts.config) delete State.texts.model;
  State.write();
}
function showState() {
  State.read();
  for (const f of FIELDS) Controls.get(f.name).set(State.texts[f.name] ?? "");
  for (const group of document.querySelectorAll("#form details"))
    if (FORM.groups.find((g) => g.title === group.firstChild.textContent).fields.some((f) => (State.texts[f.name] ?? "") !== f.default)) group.open = true;
}
