"""Launch arguments before they are merged: whether they fit in memory, and what a change of them changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from planner.api.answer import Answer
from planner.api.existing_run import run_of_megatron
from planner.base.units import GIB
from planner.report.mfu import mfu_text
from planner.report.tables import chance_text, layout_text
from planner.step.timeline.timed import timed_estimate


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the arguments don't say: the cluster, its network and framework, GPUs, model and vocabulary."""

    cluster: str
    network: str | None = None
    framework: str | None = None
    gpus: int | None = None
    model: str | None = None
    vocab: int | None = None


@dataclass(frozen=True)
class Checked(Answer):
    """What is said of launch arguments; fits: whether they fit with the chance that was asked for."""

    fits: bool = False


def check_megatron(
    text: str, launch: Launch, *, name: str, before: tuple[str, str] | None, fit_chance: float
) -> Checked:
    """Megatron-LM's arguments: seconds per step and GiB per GPU, beside those of an earlier version.

    name: of the file. before: the earlier version's name and its arguments, None for none.

    Raises as `planner.imports.megatron.megatron_run`.
    """
    after = _figures(text, launch)
    fits = after["fit_chance"] >= fit_chance
    record = {"file": name, "cluster": launch.cluster, "least_chance": fit_chance, "fits": fits, "after": after}
    lines = [f"{name} on {launch.cluster}: {_line(after)}"]
    if before is not None:
        old, earlier = before[0], _figures(before[1], launch)
        record |= {"against": old, "before": earlier}
        lines += [f"before ({old}): {_line(earlier)}", f"change: {_change(earlier, after)}"]
    if not fits:
        lines.append(f"It may run out of memory: at least {fit_chance:.0%} is asked for.")
    return Checked("", record, "\n".join(lines), fits)


def _figures(text: str, launch: Launch) -> dict[str, Any]:
    run = run_of_megatron(text, **asdict(launch))
    found = timed_estimate(run.setup, run.layouts)
    return {
        "layout": layout_text(run.layouts.row(0)),
        "global_batch": int(run.layouts.global_batch[0]),
        "step_time_s": float(found.step_time_s[0]),
        "mfu": float(found.mfu[0]),
        "mfu_text": mfu_text(float(found.mfu[0]), run.setup.model),
        "tokens_per_s_per_gpu": float(found.tokens_per_s_per_gpu[0]),
        "memory_gib": float(found.memory_bytes[0]) / GIB,
        "fit_chance": float(found.fit_chance[0]),
    }


def _line(f: dict[str, Any]) -> str:
    return (
        f"{f['layout']}, batch {f['global_batch']:,}: {f['step_time_s']:.4g} s per step, {f['mfu_text']}, "
        f"{f['memory_gib']:.1f} GiB per GPU (fits in {chance_text(f['fit_chance'])} of such cases)"
    )


def _change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Tokens per second as a share, since a batch may change with the rest, and GiB."""
    gain = after["tokens_per_s_per_gpu"] / before["tokens_per_s_per_gpu"] - 1.0
    return f"{gain:+.1%} tokens per second, {after['memory_gib'] - before['memory_gib']:+.1f} GiB per GPU"
