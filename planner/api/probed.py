"""What a probe's figures change in a recommendation: the profile's choice beside the probe's, each by both."""

from planner.api.answer import Answer
from planner.api.recommended import search_plan
from planner.choices.choice import value_text, whole
from planner.layouts import Layouts
from planner.question import batch_or_usual, load_setup
from planner.report.difference import differing
from planner.report.plain_table import plain_table, stacked
from planner.report.tables import layout_text, question_title
from planner.search import default_precision
from planner.setup import Setup
from planner.step.legality import legal
from planner.step.timeline.timed import timed_estimate


def probe_changes(
    model: str, cluster: str, probed: str, *, gpus: int, batch: int | None = None, framework: str | None = None
) -> Answer:
    """The best layout by a cluster's profile and by a probe's figures, which are in the file `probed`.

    Raises as `planner.recommend`, and LayoutError if nothing fits by one of them.
    """
    setups = load_setup(model, cluster, framework=framework), load_setup(model, probed)
    each = batch_or_usual(batch, setups[0].model.seq_len, whole("gpus", gpus))
    precision = default_precision(setups[1].cluster).name.lower()
    plans = [search_plan(s, gpus=gpus, global_batch=each, precision=precision, top=1).best.as_plan() for s in setups]
    a, b = (plan.row for plan in plans)
    seconds = [[_step_s(setup, plan.layouts) for setup in setups] for plan in plans]
    changed, before, after = differing(a, b), seconds[0][1], seconds[1][1]
    table = plain_table("chosen by", "s by profile", "s by probe", "layout", numbers=(1, 2))
    for name, row, times in zip(("profile", "probe") if changed else ("both",), (a, b), seconds, strict=False):
        table.add_row(name, *("illegal" if s is None else f"{s:.4g}" for s in times), layout_text(row))
    said = "The probe changes no choice of the layout."
    if changed:
        said = f"The probe changes {', '.join(f'{k} {value_text(a[k])} -> {value_text(b[k])}' for k in changed)}"
        said += f": {1.0 - after / before:.1%} less time than the profile's choice." if before and after else "."
    title = question_title(setups[0], gpus, each)
    rows = [{"layout": row, "step_time_s": times} for row, times in zip((a, b), seconds, strict=True)]
    return Answer(title, {"by_profile": rows[0], "by_probe": rows[1]}, stacked(title, table, said))


def _step_s(setup: Setup, layouts: Layouts) -> float | None:
    """Seconds of a layout's step; None where it isn't legal."""
    if not legal(setup.model, setup.cluster, layouts).all():
        return None
    return float(timed_estimate(setup, layouts).step_time_s[0])
