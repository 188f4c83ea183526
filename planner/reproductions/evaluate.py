"""From a claim to its outcome: the evaluators by name, and ratios of two evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.base.errors import PlannerError
from planner.reproductions.claims import Claim, Outcome, merged
from planner.reproductions.largest_figures import largest_figure
from planner.reproductions.layout_figures import layout_figure
from planner.reproductions.measured_figures import all_runs_figure, run_figure
from planner.reproductions.model_of_2021 import model_of_2021
from planner.reproductions.shortest import shortest_figure
from planner.reproductions.timeline_figures import timeline_figure
from planner.reproductions.trainer_figures import volume_figure

EVALUATORS: Mapping[str, Callable[..., tuple[float, str]]] = {
    "timeline": timeline_figure,
    "layout": layout_figure,
    "run": run_figure,
    "runs": all_runs_figure,
    "model of 2021": model_of_2021,
    "shortest": shortest_figure,
    "largest": largest_figure,
    "volume": volume_figure,
}
"""What ours comes from; each gives a figure and a note."""


def evaluate(claim: Claim) -> Outcome:
    """Ours: of the claim's arguments, or with `over`, which changes some of them, the ratio to what those give."""
    if not claim.by:
        return Outcome(claim=claim, ours=None)
    arguments = dict(claim.arguments)
    over = arguments.pop("over", None)
    evaluator = EVALUATORS[claim.by]
    try:
        ours, note = evaluator(**arguments)
        if over is not None:
            base, _ = evaluator(**merged(arguments, over))
            ours /= base
    except PlannerError as error:
        return Outcome(claim=claim, ours=None, note=str(error))
    return Outcome(claim=claim, ours=float(ours), note=note)
