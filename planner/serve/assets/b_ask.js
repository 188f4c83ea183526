// Asking the server: the newest question alone counts, the one before is given up.

class Fault extends Error {}
async function post(path, body, signal) {
  const answer = await fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Fault("No answer: planner serve has ended, or the machine can't be reached.");
  });
  const record = await answer.json();
  if (record.error) throw new Fault(record.error);
  return record;
}
// One kind of question: what is asked now, and giving up what was asked before.
const asker = () => {
  let under_way = null;
  return (path, body) => {
    under_way?.abort();
    under_way = new AbortController();
    return post(path, body, under_way.signal);
  };
};

const tell = (text, fault) => {
  byId("state").textContent = text;
  byId("state").className = fault ? "state fault" : "state";
};
// After a second a search shows that it goes on; what this returns ends that.
function working() {
  const bar = byId("progress"), main = byId("main");
  main.classList.add("stale");
  main.setAttribute("aria-busy", "true");
  const shown = setTimeout(() => { bar.hidden = false; tell("Searching every legal layout…"); }, 1000);
  return () => {
    clearTimeout(shown);
    bar.hidden = true;
    main.classList.remove("stale");
    main.removeAttribute("aria-busy");
  };
}

const askPlan = asker(), askWhy = asker(), askTimeline = asker(), askBeside = asker();
let rest = () => {}, timer = 0, asked = 0;
// The question is another one: what was asked before counts no more, and soon the new one is asked.
function changed(wait) {
  const mine = ++asked;
  clearTimeout(timer);
  rest();
  rest = working();
  timer = setTimeout(() => ask(mine, { ...State.texts }), wait);
}
function ask(mine, question) {
  const since = Date.now();
  askPlan("/answer", { question }).then((data) => {
    if (mine !== asked) return;
    byId("main").hidden = false;
    load(data);
    byId("title").textContent = data.title;
    document.title = `${data.title} – planner`;
    drawAll();
    markFigures(data.profile);
    along();
    sameElsewhere();
    rest();
    const run = BEST >= 0 ? `Run ${LAYOUTS[BEST].text}: ${seconds(LAYOUTS[BEST].step_time_s)} per step.` : "Nothing fits in memory.";
    tell(`${run} Answered in ${seconds((Date.now() - since) / 1000)}.`);
    whyPinned();
    giveBeside(mine, question);
  }).catch((error) => {
    if (mine !== asked || error.name === "AbortError") return;
    rest();
    tell(error.message, true);
    if (!(error instanceof Fault)) throw error;
  });
}
function giveBeside(mine, question) {
  askBeside("/beside", { question }).then((x) => {
    if (mine !== asked) return;
    DATA.why = [...x.reasons, ...DATA.why];
    answer();
    DATA.exports = x.exports;
    exportsOf();
  }).catch((error) => { if (error.name !== "AbortError" && !(error instanceof Fault)) throw error; }); // the answer stands without them
}

// Timelines are simulated when somebody first wants to see one.
let wanted = false;
timelineOf = async (index) => {
  const { timeline: letters } = await askTimeline("/timeline", { question: { ...State.texts }, row: String(index) });
  return letters ? (await unpacked(letters))[0] : null;
};
const drawTimeline = timeline;
timeline = () => {
  if (wanted) return drawTimeline();
  const show = () => { wanted = true; drawTimeline(); };
  put("timeline-body", el("p.lead", "The simulator's exact timeline of the layout shown."), button("Draw the timeline", show));
};

function sameElsewhere() {
  const block = (title, text) => {
    const pre = el("pre", { tabindex: 0, "aria-label": title }, text);
    return [el("h3", title), el("div.buttons", button(`Copy ${title.toLowerCase()}`, (e) => copy(text, e.currentTarget, pre))), pre];
  };
  const whole = button("Save the report (HTML, takes seconds)", () => {
    whole.disabled = true;
    post("/report", { question: { ...State.texts } }).then((x) => save("report.html", x.html)).catch((error) => tell(error.message, true)).finally(() => { whole.disabled = false; });
  });
  const link = button("Copy a link to this plan", (e) => copy(location.href, e.currentTarget, byId("title")));
  put("same-body",
    State.texts.config ? el("p.note", "Save the pasted configuration as config.json first.") : null,
    block("Command", DATA.command), block("Python", DATA.python), el("div.buttons", link, whole));
}
