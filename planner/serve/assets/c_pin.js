// My layout: choices by hand, or from a framework's configuration, and why the best isn't so, part by part.

const Pins = new Map();
function drawPin() {
  const by_name = new Map(FIELDS.map((f) => [f.name, f]));
  const fields = FORM.pinned.map((name) => {
    const f = by_name.get(name), id = `pin-${name}`;
    const node = f.values.length ? el("select", { id }, option("", "any"), f.values.map((v) => option(v))) : el("input", { id, type: "number", min: 0, step: 1 });
    Pins.set(name, node);
    return el("div.field", el("label", { for: id }, f.label), node);
  });
  const text = el("textarea", { id: "pin-text", rows: 3, spellcheck: "false", placeholder: "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 …" });
  const notes = el("ul.plain.note");
  const take = () =>
    post("/taken", { question: { ...State.texts }, text: text.value }).then((x) => {
      notes.replaceChildren(...x.notes.map((n) => el("li", n)));
      pin(x.wanted);
    }).catch((error) => notes.replaceChildren(el("li.state.fault", error.message)));
  put("pin-form",
    el("div.row", fields),
    el("details", el("summary", "From my configuration"),
      el("div.field", el("label", { for: "pin-text" }, "Megatron-LM's arguments or launch script, DeepSpeed's JSON, or torchtitan's TOML"), text),
      button("Take its layout", take), notes),
    el("div.buttons",
      el("button", { type: "submit" }, "Pin this layout"),
      button("Pin the layout shown", () => pin(wantedOf(Selected.layout))),
      button("Unpin", () => pin(""))));
  byId("pin-form").addEventListener("submit", (e) => { e.preventDefault(); pin(wantedByHand()); });
}
const wantedByHand = () => [...Pins].filter(([, node]) => node.value.trim()).map(([name, node]) => `${name}=${node.value.trim()}`).join(",");
function wantedOf(x) {
  if (!x) return "";
  const alone = ["schedule", "virtual_stages", "layer_split"];
  return FORM.pinned.filter((name) => x.layout.pp > 1 || !alone.includes(name))
    .map((name) => `${name}=${typeof x.layout[name] === "boolean" ? (x.layout[name] ? "on" : "off") : x.layout[name]}`).join(",");
}
function showPin() {
  const said = Object.fromEntries(State.pin.split(",").map((part) => part.split("=")));
  for (const [name, node] of Pins) node.value = said[name] ?? "";
}
function pin(text) {
  State.pin = text;
  State.write();
  showPin();
  whyPinned();
}
function whyPinned() {
  if (!State.pin) return put("pin-answer");
  const pinned = State.pin;
  byId("pin-answer").classList.add("stale");
  askWhy("/why", { question: { ...State.texts }, wanted: pinned })
    .then((x) => put("pin-answer", whyNodes(x)))
    .catch((error) => { if (error.name !== "AbortError") put("pin-answer", el("p.state.fault", error.message)); else return "later"; })
    .then((later) => later || byId("pin-answer").classList.remove("stale"));
}

document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault(); // the address is the question's
  byId("answer").focus();
  byId("answer").scrollIntoView();
});
addEventListener("hashchange", () => { showState(); showPin(); changed(0); });
drawForm(changed);
drawPin();
showState();
showPin();
changed(0);
