"""Scaling laws as views: the list with sources, and what each says of one training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.report.plain_table import View, plain_table, stacked
from planner.report.training import count_text

if TYPE_CHECKING:
    from planner.scaling.laws import LawFile


def laws_view(laws: LawFile) -> View:
    """Every law with how it is known and where it was fitted."""

    def span(ends: tuple[float, float]) -> str:
        return " to ".join(map(count_text, ends))

    losses = ((x.name, x.mark, span(x.fitted_parameters), span(x.fitted_tokens), x.source) for x in laws.loss.values())
    batches = ((x.name, x.mark, x.variable, span(x.fitted), x.source) for x in laws.critical_batch.values())
    fronts = ((x.name, x.mark, x.source) for x in laws.compute_optimal.values())
    replicas = (
        (x.name, x.mark, span(x.fitted_parameters), "{:g} to {:g}".format(*x.fitted_replicas), x.source)
        for x in laws.replicas.values()
    )
    return stacked(
        plain_table("loss law", "known", "fitted parameters", "fitted tokens", "source", rows=losses), "",
        plain_table("critical batch", "known", "of", "fitted", "source", rows=batches), "",
        plain_table("compute-optimal front", "known", "source", rows=fronts), "",
        plain_table("replicas", "known", "fitted parameters", "fitted replicas", "source", rows=replicas),
    )  # fmt: skip


def comparison_view(r: Mapping[str, Any]) -> View:
    """Losses, critical batches and fronts, extrapolations marked."""
    loss = plain_table("loss law", "nats per token", "with unlimited data", "optimal tokens", numbers=(1, 2, 3))
    for name, law in r["loss"].items():
        optimal = law["compute_optimal_tokens"]
        told = "-" if optimal is None else count_text(optimal)
        loss.add_row(name, f"{law['loss_nats']:.3f}", f"{law['least_loss_nats']:.3f}", told)
    batch = plain_table(
        "critical batch", "tokens", "sequences", "samples there", "B_c tokens", "", numbers=(1, 2, 3, 4)
    )
    for name, law in r["critical_batch"].items():
        batch.add_row(
            name, count_text(law["tokens"]), f"{law['sequences']:,.0f}", f"+{law['overhead_there']:.0%}",
            count_text(law["scale_tokens"]), "extrapolated" if law["extrapolated"] else "",
        )  # fmt: skip
    return stacked(
        f"{count_text(r['tokens'])} tokens, {r['tokens_origin']}",
        "",
        loss,
        "",
        batch,
        "  samples there: beyond the least, by the paper's own definition; B_c: where samples and steps are both twice "
        "their least (McCandlish et al. 2018)",
        "",
        "The same compute along a compute-optimal front",
        *(
            f"  {name}: {f['compute_flop']:.3g} FLOP are best spent on {count_text(f['parameters'])} parameters, "
            f"{f['steps']:,.0f} steps of {count_text(f['batch_tokens'])} tokens"
            for name, f in r["compute_optimal"].items()
        ),
    )
