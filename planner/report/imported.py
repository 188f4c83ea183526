"""Existing runs: beside the best that their framework runs, with what to change first; beside what logs measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from planner.base.units import GIB, counted, format_seconds
from planner.hardware import Cluster
from planner.models.flops import shown_mfu
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.records import estimate_record
from planner.report.tables import PARTS, chance_text, layout_text

if TYPE_CHECKING:
    from planner.imports.run import ExistingRun
    from planner.step.estimate import Estimate

MOST_SHOWN = 5
OF_IT = "Of the configuration: "
"""Before what was assumed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Review:
    """The review of a run.

    asked: the run; run: it, estimated (a table of one); best: the best that its framework can run, None where nothing
    fits. suggestions: single changes that help, in words and estimated, the one with the largest gain first, but those
    last that fit in fewer cases than `recommend` asks for.
    """

    asked: ExistingRun
    run: Estimate
    best: Estimate | None
    suggestions: Sequence[tuple[str, Estimate]]

    @property
    def fits(self) -> bool:
        """Whether the run fits, or nothing is said of it."""
        return bool(self.run.fits[0]) or not self.asked.judged


def review_view(review: Review, run: View) -> View:
    """What was not understood or was assumed, the run in full, beside the best, and what to change first."""
    said = [*left_out_lines(review.asked.unknown, 0), *(f"{OF_IT}{note}" for note in review.asked.notes)]
    notes = [*map(Text, said)]
    lines: list[View] = [*notes, *([""] if notes else []), run, "", *_beside(review), "", *_first(review)]
    return stacked(*lines, *map(Text, left_out_lines((), review.asked.ignored)))


def left_out_lines(unknown: Sequence[str], ignored: int) -> list[str]:
    """What of a configuration was not understood, and how many settings don't matter."""
    lines = [f"Not understood, and left out: {' '.join(unknown)}"] if unknown else []
    return lines + ([f"Neither time nor memory depends on {counted(ignored, 'more setting')}."] if ignored else [])


def review_record(review: Review, cluster: Cluster) -> dict[str, Any]:
    """The same as plain values (docs/json.md)."""
    return {
        "best_runnable": None if review.best is None else estimate_record(review.best, 0, cluster),
        "single_changes": [
            {
                "change": text,
                "step_time_s": float(changed.step_time_s[0]),
                "memory_gib": float(changed.memory_bytes[0]) / GIB,
                "fits": bool(changed.fits[0]),
                "gain": _gain(review, changed),
            }
            for text, changed in review.suggestions
        ],
        "unknown": list(review.asked.unknown),
        "ignored": review.asked.ignored,
    }


def _gain(review: Review, other: Estimate) -> float:
    """The share of the run's step that is saved."""
    return 1.0 - float(other.step_time_s[0]) / float(review.run.step_time_s[0])


def _beside(review: Review) -> list[View]:
    mfu, share = shown_mfu(review.asked.setup.model)
    table = plain_table("", "layout", "step s", mfu, "GiB", "fits", numbers=(2, 3, 4, 5))
    for name, result in (("this run", review.run), ("the best", review.best)):
        if result is not None:
            table.add_row(
                name, Text(layout_text(result.layouts.row(0))), f"{result.step_time_s[0]:.4g}",
                f"{result.mfu[0] * share:.1%}", f"{result.memory_bytes[0] / GIB:.1f}",
                chance_text(float(result.fit_chance[0])),
            )  # fmt: skip
    out: list[View] = [bold(f"Beside the best that {review.asked.title} can run on these GPUs"), table]
    if review.best is None:
        out.append("  Nothing that it can run fits in memory.")
        return out
    gain = _gain(review, review.best)
    if not review.fits:
        out.append("  This run does not fit in memory; the best does.")
    elif gain < 0.005:
        out.append("  This run is as fast, within 0.5 %. Of layouts too close to tell apart the plainest stands here.")
    else:
        out.append(f"  The best takes {gain:.1%} less time per step.")
    if review.asked.switches:
        out.append(f"  It is counted with what this run has turned off: {', '.join(review.asked.switches)}.")
    return out


def _first(review: Review) -> list[View]:
    """The single change with the largest gain, and the next ones."""
    fits = review.fits
    if not review.suggestions:
        said = "No single change gains 0.5 % and fits as surely." if fits else "No single change makes it fit."
        return [bold("Change first"), f"  {said}", ""]
    table = plain_table("change", "step s", "gain", "GiB", "fits", numbers=(1, 2, 3, 4))
    for text, changed in review.suggestions[:MOST_SHOWN]:
        table.add_row(
            Text(text), f"{changed.step_time_s[0]:.4g}", f"{_gain(review, changed):.1%}" if fits else "fits",
            f"{changed.memory_bytes[0] / GIB:.1f}", chance_text(float(changed.fit_chance[0])),
        )  # fmt: skip
    head = "Change first" if fits else "Change first: each of these makes it fit"
    return [bold(head), table, ""]


WORDS = {
    "steps_per_s": "steps/s", "samples_per_s": "sequences/s", "tokens_per_s_per_gpu": "tokens/s/GPU"
}  # fmt: skip


def observed_view(records: Sequence[Mapping[str, Any]]) -> View:
    """A paragraph for each log, with a table where the run is known; off: predicted over measured, as everywhere."""
    parts: list[View] = []
    for record in records:
        parts += ["", *_log(record), *(_beside_prediction(record) if "slower" in record else [])]
    return stacked(*parts[1:])


def _log(record: Mapping[str, Any]) -> list[View]:
    kind, median = record["kind"], record["median"]
    speed = f"{format_seconds(median)} per step" if kind == "time_s" else f"{median:,.5g} {WORDS[kind]}"
    more = [f"{record['tflops_per_gpu']:.4g} TFLOP/s/GPU"] if record["tflops_per_gpu"] else []
    more += [f"peak {record['memory_gib']:.2f} GiB"] if record["memory_gib"] else []
    return [
        bold(f"{record['log']}: {record['framework']}"),
        f"  {', '.join([speed, *more])}",
        f"  the median of {record['steps']:,} steady iterations (spread {record['spread']:.1%}); "
        f"{record['warm_up']:,} before them {'is' if record['warm_up'] == 1 else 'are'} left out"
        + (f", and {record['other_batch']:,} of another global batch" if record["other_batch"] else ""),
    ]


def _beside_prediction(record: Mapping[str, Any]) -> list[View]:
    table = plain_table("", "measured", "predicted", "off", numbers=(1, 2, 3))
    seconds = (format_seconds(record[f"{what}_step_time_s"]) for what in ("measured", "predicted"))
    tokens, slower = record["tokens_per_s_per_gpu"], record["slower"]
    table.add_row("step", *seconds, f"{1 / (1 + slower) - 1:+.1%}")
    table.add_row("tokens/s/GPU", f"{tokens:,.0f}", f"{tokens * (1 + slower):,.0f}", f"{slower:+.1%}")
    if record["memory_gib"]:
        cells = (f"{record[k]:.2f}" for k in ("memory_gib", "predicted_memory_gib"))
        table.add_row("peak GiB", *cells, f"{1 / (1 + record['memory_more']) - 1:+.1%}")
    low, high = (format_seconds(x) for x in record["interval_s"])
    said = f"  with a chance of 80 % the step takes {low} to {high}; predicted beside products most goes to "
    head = bold("Look at first")
    return [
        "", table, f"{said}{PARTS[record['largest_overhead']]}, {record['overhead_share']:.0%}", "", head,
        *(f"  {line}" for line in record["first"]),
    ]  # fmt: skip
