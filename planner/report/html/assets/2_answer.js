// The question, the answer with its figures and reasons, and which layout is selected.

let DATA, LAYOUTS, BEST, MFU_NAME, MFU_SHARE, MFU_WHOLE;
const Selected = {
  index: 0,
  followers: [],
  get layout() {
    return LAYOUTS[this.index];
  },
  follow(draw) {
    this.followers.push(draw);
    draw();
  },
  choose(index) {
    if (index === this.index) return;
    this.index = index;
    this.followers.forEach((draw) => draw());
  },
};

// What is drawn from now on.
function load(data) {
  DATA = data;
  LAYOUTS = DATA.layouts;
  [MFU_NAME, MFU_SHARE, MFU_WHOLE] = DATA.mfu_shown;
  BEST = LAYOUTS.findIndex((x) => x.roles.includes("best"));
  Selected.index = Math.max(BEST, 0);
  Selected.followers = [];
}

// For long sequences, causal attention's MFU: share of PaLM's, which counts attention whole.
const mfu = (x) => percent(MFU_SHARE * x.mfu);

const figure = (name, value, more) =>
  el("div.figure", el("div.name", name), el("div.value", value), el("div.more", more));

function intervalText(x) {
  if (!x.interval_s) return "no measured runs to tell";
  const [low, high] = x.interval_s.map(seconds),
    [number, unit] = low.split("\u00a0");
  return `${high.endsWith(`\u00a0${unit}`) ? number : low} to ${high}`;
}

// How far the best is ahead of the next.
function ahead() {
  const next = LAYOUTS.filter((x, i) => i !== BEST && x.roles.includes("top")).sort((a, b) => a.step_time_s - b.step_time_s)[0];
  if (BEST < 0 || !next || next.step_time_s < LAYOUTS[BEST].step_time_s) return [];
  return [
    `The fastest that fits; the next, ${next.text}, takes ${percent(next.step_time_s / LAYOUTS[BEST].step_time_s - 1)} longer.`,
  ];
}

// The fastest and the roomiest beside the recommended one.
function others() {
  const all = LAYOUTS.map((x, i) => [x, i]).filter(([x]) => x.roles.includes("fastest") || x.roles.includes("roomiest"));
  const line = ([x, i]) => {
    const named = x.roles.filter((r) => r === "fastest" || r === "roomiest").map((r) => ROLES[r][0]).join(", "),
      slower = x.step_time_s / LAYOUTS[BEST].step_time_s - 1;
    return el("li", `${named}: `, button(x.text, () => Selected.choose(i), { class: "link mono" }),
      `, ${percent(Math.abs(slower))} ${slower < 0 ? "faster" : "slower"}, ${gib(x.memory_gib)}, fits in ${x.fits_in}.`);
  };
  return all.length ? [el("h3", "Or"), el("ul", all.map(line))] : null;
}

function answer() {
  put("answer-title", BEST >= 0 ? "Run this" : "Nothing fits in memory");
  put("answer-layout", BEST >= 0 ? LAYOUTS[BEST].text : "");
  put(
    "asked",
    DATA.asked.map(([name, value]) => el("div", el("dt", name), el("dd", value))),
  );
  if (BEST >= 0) {
    const x = LAYOUTS[BEST];
    put(
      "figures",
      figure("Runs on", ...DATA.runs_on),
      figure(
        "Step time",
        seconds(x.step_time_s),
        x.interval_s ? `with a chance of 80 %: ${intervalText(x)}` : "unverified on such GPUs",
      ),
      figure(`Model FLOP utilisation${MFU_SHARE < 1 ? ", causal" : ""}`, mfu(x), MFU_SHARE === 1 ? "6N + 12LHQT per token, over peak" : MFU_WHOLE ? `${percent(x.mfu)} with whole attention` : "of what sliding windows compute"),
      figure("Throughput", `${digits4(x.tokens_per_s_per_gpu)}`, "tokens per second per GPU"),
      figure("Memory per GPU", gib(x.memory_gib), `of ${gib(DATA.capacity_gib)}; fits in ${x.fits_in} of such cases`),
      x.cost_usd_per_step === null ? null : figure("Cost", `${digits4(x.cost_usd_per_step)} USD`, "per step"),
    );
  }
  put(
    "reasons",
    others(),
    el("h3", "Why"),
    el("ul", [...ahead(), ...DATA.why].map((line) => el("li", line.replaceAll(" %", "\u00a0%")))),
  );
}

function selectionBar() {
  const bar = byId("selected");
  Selected.follow(() => {
    bar.hidden = BEST < 0 || Selected.index === BEST;
    if (bar.hidden) return bar.replaceChildren();
    const x = Selected.layout;
    const slower = x.step_time_s / LAYOUTS[BEST].step_time_s - 1;
    bar.replaceChildren(
      el("span", "Shown: ", el("span.mono", x.text)),
      el(
        "span",
        `${seconds(x.step_time_s)}, ${percent(Math.abs(slower))} ${slower < 0 ? "faster" : "slower"} than recommended`,
      ),
      button("Back to the recommended", () => Selected.choose(BEST)),
    );
  });
}

// What a layout's choices mean, in words.
const ZERO = [
  "nothing sharded over replicas",
  "optimizer state sharded over replicas",
  "optimizer state and gradients sharded over replicas",
  "optimizer state, gradients and parameters sharded over replicas",
];
function meaning(x) {
  const c = x.layout,
    s = (n) => (n === 1 ? "" : "s");
  return [
    [`dp ${c.dp}`, c.dp > 1 ? `${c.dp} replicas, each with its share of the batch` : "one replica"],
    [
      `tp ${c.tp}`,
      c.tp > 1
        ? `every layer split over ${c.tp} GPUs` +
          (c.sequence_parallel ? ", norms and dropout too (sequence parallelism)" : "")
        : "layers not split",
    ],
    [`pp ${c.pp}`, c.pp > 1 ? `layers in ${c.pp} pipeline stages` : "no pipeline"],
    c.virtual_stages > 1 ? [`v ${c.virtual_stages}`, `${c.virtual_stages} chunks of layers per pipeline rank`] : null,
    c.pp > 1 || c.virtual_stages > 1 ? ["schedule", c.schedule] : null,
    c.cp > 1 ? [`cp ${c.cp}`, `every sequence split over ${c.cp} GPUs`] : null,
    c.ep > 1 ? [`ep ${c.ep}`, `experts spread over ${c.ep} GPUs`] : null,
    c.etp !== c.tp ? [`etp ${c.etp}`, "experts whole on a GPU, not split as other layers are"] : null,
    c.sequence_slices > 1
      ? [`k ${c.sequence_slices}`, `sequences pass the pipeline in ${c.sequence_slices} slices`]
      : null,
    [
      `mb ${c.micro_batch}`,
      `${c.micro_batch} sequence${s(c.micro_batch)} per micro-batch, ${x.micro_batches} micro-batch${x.micro_batches === 1 ? "" : "es"} per step and replica`,
    ],
    [`zero ${c.zero}`, ZERO[c.zero]],
    c.dp_replicate > 1
      ? [`replicate ${c.dp_replicate}`, `of what is sharded ${c.dp_replicate} copies, each over neighbouring GPUs`]
      : null,
    [
      "recompute",
      {
        none: "no activations computed again",
        selective: "the attention core computed again in the backward pass",
        fine: "norms, activations of experts and all up from latents computed again in the backward pass",
        full: "every layer computed again in the backward pass",
      }[c.recompute],
    ],
    SPLITS[c.layer_split] ?? null,
    c.offload_optimizer ? ["offload", "optimizer state in host memory"] : null,
    ["numbers", `${c.precision}, attention ${c.attention}`],
  ].filter(Boolean);
}

const SPLITS = {
  balanced: ["balanced", "layers split over stages by cost"],
  parameters: ["by parameters", "layers split over stages by their parameters, embedding and head counted"],
  ends: ["by ends", "embedding and head count as a layer each: first and last chunk have one fewer"],
};

const ROLES = {
  best: ["Recommended", "good"],
  fastest: ["Fastest"],
  roomiest: ["Roomiest"],
  front: ["On the front"],
  top: ["Among the best"],
  miss: ["Nearest miss", "bad"],
  faster: ["Faster, needs more memory", "bad"],
};
function details() {
  Selected.follow(() => {
    if (!LAYOUTS.length) return put("details", el("p", "No layout to show."));
    const x = Selected.layout;
    const tags = x.roles.map((r) => el("span", { class: `tag ${ROLES[r][1] || ""}` }, ROLES[r][0]));
    tags.push(x.fits ? el("span.tag", `Fits in ${x.fits_in}`) : el("span.tag.bad", "Does not fit"));
    put(
      "details",
      el("p.layout", x.text),
      el("div.tags", tags),
      el(
        "p",
        `${seconds(x.step_time_s)} per step (80 %: ${intervalText(x)}), ${MFU_NAME} ${mfu(x)}, ${digits4(x.tokens_per_s_per_gpu)} tokens/s/GPU, ${gib(x.memory_gib)} of ${gib(DATA.capacity_gib)}.`,
      ),
      el("dl.meaning", meaning(x).map(([name, text]) => [el("dt", name), el("dd", text)]).flat()),
    );
  });
}
