"""Results as tables and sentences for a terminal of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from planner.base import records
from planner.base.units import GIB, TERA, counted, format_bytes, format_seconds, gpus_text
from planner.choices.choice import Choice
from planner.choices.table import CHOICES, usual
from planner.models import Transformer
from planner.models.flops import mfu_text, shown_mfu
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.schedules import get_schedule
from planner.search.found import largest_part

if TYPE_CHECKING:
    from planner.base.arrays import Ints
    from planner.search import Recommendation
    from planner.setup import Setup
    from planner.step.estimate import Estimate

MEMORY = {"buffers": "buffers of a layer at work", "reserved": "context, communicators"}
"""Parts of the memory whose own names don't say what they are."""
GRAPHS = "--cuda-graphs"
UNCOUNTED = "whose own buffers are not counted: a few GB, over 10 GB in some pipelines"
"""Of CUDA graphs, by NVIDIA's experience (Megatron-Bridge, docs/performance-guide.md), which states no rule."""
HOPELESS = 0.01  # a chance of fitting that nobody would try
DIFFERS = 0.01  # of a step: a closed form that is further from the timeline is shown beside it
PARTS = {
    "matmul": "matrix products",
    "attention": "attention core",
    "scan": "state-space scan",
    "pointwise": "norms, activations, copies",
    "recompute": "recomputed forward",
    "embedding_head": "embedding, head and loss",
    "host": "waiting for the host's launches",
    "tensor_comm": "tensor-parallel collectives",
    "context_comm": "context-parallel ring",
    "expert_comm": "expert all-to-all",
    "sharding_comm": "gathers and scatters of ZeRO",
    "pipeline_comm": "sends between stages",
    "host_comm": "activations to the host and back, exposed",
    "imbalance": "uneven stages",
    "bubble": "pipeline bubble",
    "data_comm": "gradient reduction, exposed",
    "optimizer": "optimizer step",
}


def question_title(setup: Setup, gpus: int, global_batch: int) -> str:
    """The question in one line."""
    model, cluster = setup.model, setup.cluster
    return f"{model.name} on {gpus_text(gpus)} of {cluster.name}, batch {global_batch} x {model.seq_len} tokens"


SPLITS = {"balanced": "balanced", "parameters": "by parameters", "products": "by products", "ends": "by ends",
          "last": "short last stage"}  # fmt: skip


def layout_text(row: dict[str, Any]) -> str:
    """A layout in one line, defaults left out."""
    words = [_choice_text(choice, row) for choice in CHOICES.values()]
    schedule = get_schedule(row["schedule"])
    if row["pp"] > 1 or schedule.one_layer_chunks:
        words.append(schedule.name if schedule.synchronous else f"{schedule.name} (asynchronous)")
    return " ".join(word for word in words if word)


def _choice_text(choice: Choice, row: dict[str, Any]) -> str:
    """One choice in words; empty at its default."""
    value = row[choice.name]
    if choice.name == "layer_split":
        return SPLITS.get(value, "")
    if not choice.short or (value == usual(choice, row) and not choice.always):
        return ""
    return choice.short if choice.kind is bool else f"{choice.short} {value}"


def _table(result: Estimate, rows: Any, model: Transformer) -> Table:
    name, share = shown_mfu(model)
    table = plain_table("layout", "step s", name, "GiB", "fits", "largest other cost", numbers=(1, 2, 3, 4))
    for i in map(int, rows):
        part, of_step = largest_part(result, i)
        table.add_row(
            layout_text(result.layouts.row(i)), f"{result.step_time_s[i]:.4g}", f"{share * result.mfu[i]:.1%}",
            f"{result.memory_bytes[i] / GIB:.1f}", chance_text(float(result.fit_chance[i])),
            f"{PARTS[part]} {of_step:.0%}",
        )  # fmt: skip
    return table


def _figures_line(result: Estimate, i: int, model: Transformer, verdict: str) -> str:
    """A layout's step, MFU, what a GPU does per second (FLOP as the MFU that is shown first counts them), memory."""
    mfu, share = float(result.mfu[i]), shown_mfu(model)[1]
    rate = mfu * share * float(result.peak_flops[i]) / TERA
    return (
        f"  {format_seconds(float(result.step_time_s[i]))} per step, {mfu_text(mfu, model)}, "
        f"{f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} TFLOP/s/GPU, "
        f"{result.tokens_per_s_per_gpu[i]:,.0f} tokens/s/GPU{verdict}{format_bytes(float(result.memory_bytes[i]))} of "
        f"{format_bytes(result.capacity_bytes)} (fits in {chance_text(float(result.fit_chance[i]))} of such cases)"
    )


def chance_text(chance: float) -> str:
    """A chance in whole per cent, never more than it is: ``chance_text(0.949) == "94%"``, of 0.999 ">99%"."""
    return ">99%" if chance > 0.99 else "<1%" if chance < 0.01 else f"{math.floor(100.0 * chance + 1e-9)}%"


def recommendation_view(found: Recommendation, setup: Setup, beside: Mapping[str, Any], odd: Ints) -> View:
    """The answer first, then the runners-up, the front, why the rest lost, and how accurate this is.

    beside: what the answer's record has beside the layouts (docs/json.md), such as `fits_with` and `assumed`.
    odd: unusual choices of each layout.
    """
    result, model = found.estimate, setup.model
    lines: list[View] = []
    if len(found.best):
        i = int(found.best[0])
        lines.append(Text("Run this: " + layout_text(result.layouts.row(i)), style="bold green"))
        lines.append(_figures_line(result, i, model, ", "))
        lines += closed_form_lines(result, i)
        lines += [f"  {line}" for line in lighter_lines(beside["faster_with"], beside["faster_with_layout"])]
        if (j := found.fastest) is not None and j != i:
            lines.append(f"  {_fastest_line(result, i, j)}")
        if (j := found.roomiest) is not None:
            lines.append(f"  {_roomiest_line(result, i, j, odd)}")
        lines += ["", _table(result, found.best, model), ""]
        lines.append(bold("Fastest for each amount of memory, up to twice the best step"))
        front = found.front[result.step_time_s[found.front] <= 2.0 * result.step_time_s[found.front[0]]]
        front = front if len(front) <= 6 else front[[0, 1, 2, len(front) // 2, -2, -1]]
        lines += [_table(result, front, model), ""]
    lines.append(bold("Why the rest lost" if len(found.best) else "Nothing fits in memory"))
    lines += [f"  {line}" for line in counted_lines(found) + reason_lines(found)]
    if beside["fewest_gpus"] is not None:
        lines.append(f"  On {gpus_text(beside['fewest_gpus'])} something fits.")
    if beside["fits_with"]:
        gpus = gpus_text(int(result.layouts.gpus[0]))
        lines.append(f"  On {gpus} something fits with {', or '.join(beside['fits_with'])}.")
    if elsewhere := beside["faster_with_any_framework"]:
        gain = 1.0 - elsewhere["step_time_s"] / float(result.step_time_s[found.best[0]])
        other = layout_text(elsewhere["layout"])
        lines.append(f"  {setup.framework.name} does not by itself run {other}, {gain:.1%} faster (--any-framework).")
    if better := beside["better_batch"]:
        batch, saved = better["global_batch"], better["saves_per_sequence"]
        lines.append(f"  A batch of {batch:,} takes {saved:.1%} less time per sequence: more of the GPUs can share it.")
    if whole := beside["whole_nodes"]:
        gpus, batch, saved = whole["gpus"], whole["global_batch"], whole["saves_per_sequence"]
        lines.append(f"  {gpus:,} GPUs, in full nodes, take {saved:.1%} less time per sequence: batch {batch:,}.")
    return stacked(*lines, *closing_lines(beside["assumed"], beside["accuracy"]))


def lighter_lines(faster_with: Mapping[str, float], layouts: Mapping[str, dict[str, Any]]) -> list[str]:
    """Steps with options that shorten them, and whose they are: a sentence for the host's launches, one for memory."""
    steps = {o: f"{format_seconds(step)} with {o} ({layout_text(layouts[o])})" for o, step in faster_with.items()}
    launches = f"{steps.pop(GRAPHS)}, {UNCOUNTED}" if GRAPHS in steps else ""
    lighter = ", ".join(steps.values())
    lines = {"Slow for the host's launches": launches, "Slow for want of memory": lighter}
    return [f"{why}: a step takes {said}" for why, said in lines.items() if said]


def closed_form_lines(result: Estimate, i: int) -> list[str]:
    """A line where the closed form, which ranks a search's layouts, is off the step by over 1 %, or is the step."""
    if result.layouts.pp[i] > 1 and not result.simulated[i]:
        return ["  by the closed form: too many operations to run each on the timeline (planner simulate does)"]
    closed, step = float(result.closed_form_s[i]), float(result.step_time_s[i])
    share = closed / step - 1.0
    if abs(share) <= DIFFERS:
        return []
    return [f"  by the exact timeline; the closed form says {format_seconds(closed)} ({share:+.1%})"]


def _fastest_line(result: Estimate, i: int, fastest: int) -> str:
    """The fastest layout's gain over the one to run, and its memory."""
    gain = 1.0 - float(result.step_time_s[fastest] / result.step_time_s[i])
    memory, chance = format_bytes(float(result.memory_bytes[fastest])), chance_text(float(result.fit_chance[fastest]))
    text = layout_text(result.layouts.row(fastest))
    return f"Fastest by {gain:.1%}, too little to tell: {text}, {memory} (fits in {chance})"


def _roomiest_line(result: Estimate, i: int, roomiest: int, odd: Ints) -> str:
    """The roomiest of the fast layouts: its step beside that of the one to run, with a reason where it is faster."""
    loss = float(result.step_time_s[roomiest] / result.step_time_s[i]) - 1.0
    against = f"{abs(loss):.1%} {'slower' if loss >= 0 else 'faster'}"
    if loss < 0 and odd[roomiest] > odd[i]:
        against += f" but with {odd[roomiest]} unusual choice{'s' * bool(odd[roomiest] > 1)}, not {odd[i]}"
    memory = format_bytes(float(result.memory_bytes[roomiest]))
    return f"Roomiest, {against}: {layout_text(result.layouts.row(roomiest))}, {memory}"


def counted_lines(found: Recommendation) -> list[str]:
    """How many layouts were searched, fit, and can't be told from the best."""
    result = found.estimate
    over = found.legal - found.fitting
    room = "in memory"
    if result.usable_bytes < result.capacity_bytes:
        of = f"{format_bytes(result.usable_bytes)} of {format_bytes(result.capacity_bytes)}"
        room = f"in {of}, which fits in {chance_text(result.least_chance)} of cases"
    fit = f"{over:,} do not fit {room}, {found.fitting:,} do" if found.fitting else f"none fits {room}"
    lines = [f"{counted(found.legal, 'legal layout')}; {fit}."]
    if found.ties > 0:
        lines.append(f"Too close to tell apart, within 1 % of the best: {found.ties:,} more.")
    return lines


def reason_lines(found: Recommendation) -> list[str]:
    """The nearest miss where nothing fits, what limits the best, and whether more memory would help."""
    result = found.estimate
    lines: list[str] = []
    miss = found.nearest_miss
    if miss is not None and not len(found.best):
        excess = float(result.memory_bytes[miss]) - result.usable_bytes
        chance = float(result.fit_chance[miss])
        may = f"; it fits in {chance_text(chance)} of cases" if chance >= 0.01 else ""
        lines.append(f"Nearest miss, {format_bytes(excess)} over: {layout_text(result.layouts.row(miss))}{may}")
    if len(found.best):
        part, share = largest_part(result, int(found.best[0]))
        lines.append(f"Largest cost after matrix products: {PARTS[part]}, {share:.1%} of the step.")
    faster = found.faster_over_memory
    if faster is not None and result.fit_chance[faster] < HOPELESS:
        lines.append("None that could fit is 2 % faster.")
    elif faster is not None:
        gain = 1.0 - float(result.step_time_s[faster] / result.step_time_s[found.best[0]])
        need = format_bytes(float(result.memory_bytes[faster]))
        risk = f"{need} per GPU: it fits in {chance_text(float(result.fit_chance[faster]))} of cases"
        lines.append(f"{layout_text(result.layouts.row(faster))} is {gain:.1%} faster but takes {risk}.")
    elif len(found.best):
        lines.append("More memory would not change the answer: none over it is 2 % faster.")
    else:
        smaller = " a smaller micro-batch," if found.request.fixed.micro_batch else ""
        lines.append(f"Use more GPUs,{smaller} or more memory.")
    return lines


def estimate_view(
    result: Estimate, i: int, model: Transformer, interval_s: tuple[float, float] | None = None,
    assumed: Sequence[str] = (), unlike: str = "", judged: bool = True,
) -> View:  # fmt: skip
    """One layout in full: its line, between which times such steps lie, seconds and bytes by part, what is assumed.

    unlike: in what no measured run is like it, if any. judged: whether its memory says that it fits, or doesn't.
    """
    step = float(result.step_time_s[i])
    time = plain_table("where the time goes", "s", "share", numbers=(1, 2))
    for name, seconds in records.parts(result.time, i, "_s").items():
        if abs(seconds) >= 5e-7:
            time.add_row(PARTS[name], f"{seconds:.4g}", f"{seconds / step:.1%}")
    time.add_row("step", f"{step:.4g}", "100.0%", style="bold")
    memory = plain_table("where the memory goes", "GiB", numbers=(1,))
    for name, size_gib in records.parts(result.memory, i, "_bytes", GIB).items():
        if size_gib > 0:
            memory.add_row(MEMORY.get(name, name), f"{size_gib:.2f}")
    memory.add_row("peak of the fullest rank", f"{result.memory_bytes[i] / GIB:.2f}", style="bold")
    head = bold(layout_text(result.layouts.row(i)))
    verdict = "fits" if result.surely_fits[i] else "MAY NOT FIT" if result.fit_chance[i] >= 0.5 else "DOES NOT FIT"
    line = _figures_line(result, i, model, f"\n  {verdict}: ")
    if not (judged or result.fits[i]):
        line = _figures_line(result, i, model, "\n  at most, no verdict: ").split(" (fits in")[0]
    trust = closed_form_lines(result, i)
    if interval_s is not None:
        low, high = (format_seconds(x) for x in interval_s)
        trust += [f"  with a chance of 80 % the step takes {low} to {high}"]
        trust += [f"  {unlike}"] if unlike else []
    return stacked(head, line, *trust, "", time, "", memory, *closing_lines(assumed))


def closing_lines(assumed: Sequence[str], accuracy: str = "") -> list[str]:
    """An answer's assumptions, and how accurate such answers have been: a paragraph each, none if empty."""
    lines: list[str] = []
    if assumed:
        lines += ["", f"Assumed: {'; '.join(assumed)}."]
    if accuracy:
        lines += ["", f"How accurate: {accuracy}"]
    return lines
