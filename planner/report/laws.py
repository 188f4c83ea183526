"""Scaling laws as records and views: the list with sources, and what each says of one training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.report.plain_table import plain_table, stacked
from planner.report.training import count_text

if TYPE_CHECKING:
    from planner.scaling.laws import LawFile
    from planner.training_time.law_comparison import Laws


def laws_view(laws: LawFile) -> RenderableType:
    """Every law with how it is known and where it was fitted."""
    loss = plain_table("loss law", "known", "fitted parameters", "fitted tokens", "source")
    for law in laws.loss.values():
        spans = (f"{count_text(a)} to {count_text(b)}" for a, b in (law.fitted_parameters, law.fitted_tokens))
        loss.add_row(law.name, law.mark, *spans, law.source)
    batch = plain_table("critical batch", "known", "of", "fitted", "source")
    for b in laws.critical_batch.values():
        low, high = b.fitted
        batch.add_row(b.name, b.mark, b.variable, f"{count_text(low)} to {count_text(high)}", b.source)
    front = plain_table("compute-optimal front", "known", "source")
    for c in laws.compute_optimal.values():
        front.add_row(c.name, c.mark, c.source)
    replicas = plain_table("replicas", "known", "fitted parameters", "fitted replicas", "source")
    for r in laws.replicas.values():
        size = " to ".join(map(count_text, r.fitted_parameters))
        replicas.add_row(r.name, r.mark, size, f"{r.fitted_replicas[0]:g} to {r.fitted_replicas[1]:g}", r.source)
    return stacked(loss, "", batch, "", front, "", replicas)


def comparison_record(found: Laws, seq_len: int) -> dict[str, Any]:
    """Each law's answers on one training."""
    return {
        "tokens": found.batches[0].target.tokens,
        "tokens_origin": found.batches[0].origin,
        "loss": {
            s.goal.loss_law.name: {
                "loss_nats": s.goal.target.loss, "least_loss_nats": s.least, "compute_optimal_tokens": s.optimal_tokens,
            }
            for s in found.losses
        },
        "critical_batch": {
            g.batch_law.name: {
                "tokens": g.critical, "sequences": g.critical / seq_len, "overhead_there": g.batch_law.overhead,
                "scale_tokens": g.scale, "extrapolated": any(w.startswith(g.batch_law.name) for w in g.warnings),
            }
            for g in found.batches
        },
        "compute_optimal": {
            f.name: {
                "compute_flop": f.compute_flop, "parameters": f.parameters, "batch_tokens": f.batch_tokens,
                "steps": f.steps,
            }
            for f in found.fronts
        },
    }  # fmt: skip


def comparison_view(found: Laws, seq_len: int) -> RenderableType:
    """Losses, critical batches and fronts, extrapolations marked."""
    first = found.batches[0]
    loss = plain_table("loss law", "nats per token", "with unlimited data", "optimal tokens", numbers=(1, 2, 3))
    for s in found.losses:
        optimal = "-" if s.optimal_tokens is None else count_text(s.optimal_tokens)
        loss.add_row(s.goal.loss_law.name, f"{s.goal.target.loss:.3f}", f"{s.least:.3f}", optimal)
    batch = plain_table(
        "critical batch", "tokens", "sequences", "samples there", "B_c tokens", "", numbers=(1, 2, 3, 4)
    )
    for g in found.batches:
        outside = any(w.startswith(f"{g.batch_law.name} ") for w in g.warnings)
        batch.add_row(
            g.batch_law.name, count_text(g.critical), f"{g.critical / seq_len:,.0f}", f"+{g.batch_law.overhead:.0%}",
            count_text(g.scale), "extrapolated" if outside else "",
        )  # fmt: skip
    lines: list[RenderableType] = [
        f"{count_text(first.target.tokens)} tokens, {first.origin}",
        "",
        loss,
        "",
        batch,
        "  samples there: beyond the least, by the paper's own definition; B_c: where samples and steps are both twice "
        "their least (McCandlish et al. 2018)",
        "",
        Text("The same compute along a compute-optimal front"),
    ]
    for f in found.fronts:
        lines.append(
            f"  {f.name}: {f.compute_flop:.3g} FLOP are best spent on {count_text(f.parameters)} parameters, "
            f"{f.steps:,.0f} steps of {count_text(f.batch_tokens)} tokens"
        )
    return stacked(*lines)
