"""The shortest training that a paper found, and ours for the same question: the difference, part by part."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from planner.api.answer import Answer
from planner.api.training import MOST_GPUS
from planner.base.errors import InputError, UnknownNameError
from planner.base.units import DAY, GIB
from planner.hardware import Cluster
from planner.models import Transformer
from planner.report.fastest import paper_fastest_view, paper_model_view, point
from planner.report.plots import bars, draw_rows, figure_of
from planner.report.tables import layout_text
from planner.reproductions import get_paper, preset_of
from planner.reproductions.shortest import paper_question, parts_of_ours, parts_of_the_paper, shortest, towards_today
from planner.scaling import lamy_poirier as lp

WAYS = {
    name.replace(" + ", "+").replace(", baseline", "").replace(", ", ":"): one for name, one in lp.STRATEGIES.items()
}
"""The paper's strategies as they are asked for: 3d is its baseline, 3d:improved its improved way."""


def fastest_of_paper(paper: str, model: str, framework: str | None = None) -> Answer:
    """The paper's answer, the paper's model of costs, ours on its question, and ours on today's usual question.

    Raises UnknownNameError for an unknown paper or framework, or a paper without such a question; InputError for
    another model than the paper's.
    """
    question = paper_question(paper, framework)
    p = question.preset
    if model != p["model"]:
        raise InputError(f"model is {model}; allowed with --paper {paper}: {p['model']}")
    c, theirs = parts_of_the_paper(question)
    found = shortest(question, p["strategy"], p["max_gpus"])
    i, ours = found.best, parts_of_ours(found)
    lost = float(found.run.wall_s[i] - found.run.busy_s[i]) / DAY
    changes = towards_today(question, "3d", MOST_GPUS)
    record = {
        "paper": paper,
        "model": model,
        "tokens": p["tokens"],
        "framework": question.setup.framework.name,
        "published_days": p["days"],
        "paper_days": sum(theirs.values()),
        "paper_gpus": int(c.gpus),
        "ours": point(found) | {"layout": layout_text(found.estimate.layouts.row(i))},
        "parts": [{"part": name, "paper_days": theirs[name], "ours_days": ours[name]} for name in theirs],
        "failures_and_checkpoints_days": lost,
        "towards_today": [{"change": name} | point(one) for name, one in changes],
    }
    rows = {row["part"]: [row["paper_days"], row["ours_days"]] for row in record["parts"]}
    panel = partial(bars, rows=rows, title="The shortest training", unit="days", series=(paper, "planner"))
    view = paper_fastest_view(record, get_paper(paper), question.setup.model)
    return Answer("", record, view, partial(figure_of, model, panel))


def fastest_by_paper(
    paper: str, model: Transformer, clusters: Sequence[Cluster], strategies: Sequence[str], max_gpus: int | None = None
) -> Answer:
    """The shortest training of a model X_x by the paper's own model of costs, on clusters of any figures.

    Raises UnknownNameError for an unknown paper or strategy, or a paper without such a model; InputError for another
    model than its family.
    """
    preset_of(paper)  # the papers with a model of costs
    task = lp.PaperTask(x=int(model.num_layers))
    if model.name != f"x-{task.x}":
        raise InputError(f"model is {model.name}; allowed with --paper {paper}: x-160 or another of its family x-N")
    for name in strategies:
        if name not in WAYS:
            raise UnknownNameError(f"strategy of {paper}", name, WAYS)
    results = [
        {"cluster": cluster.name, "network": cluster.network.name, "gpus_per_node": cluster.gpus_per_node}
        | {"strategy": name} | _by_paper(task, WAYS[name], lp.Hardware.of(cluster), max_gpus)
        for cluster in clusters for name in strategies
    ]  # fmt: skip
    record = {"paper": paper, "model": model.name, "parameters": task.parameters,
              "critical_batch": float(lp.critical_batch(task.x)), "steps": task.steps, "results": results}  # fmt: skip
    rows = {f"{r['cluster']}, {r['strategy']}": r for r in results if "none" not in r}
    draw = partial(draw_rows, f"{model.name} by {paper}", rows, ("days", "days"), ("gpus", "GPUs"))
    return Answer("", record, paper_model_view(record, get_paper(paper)), draw)


def _by_paper(task: lp.PaperTask, way: lp.PaperStrategy, on: lp.Hardware, most: int | None) -> dict[str, Any]:
    """The strategy's fastest configuration, its days, memory and intensities; or why there is none."""
    try:
        c = lp.fastest(task, way, on, max_gpus=most)
    except InputError as error:
        return {"none": str(error)}
    traffic = lp.intensities(task, way, c)
    flop_per_byte = {name: float(getattr(traffic, name)) for name in ("data", "gather", "pipeline", "tensor")}
    offload = {f"offload_{name}": float(value) for name, value in lp.offload_intensities(task, way, c).items()}
    return {
        "days": float(lp.time_s(task, way, on, c)) / DAY, "gpus": int(c.gpus), "configuration": asdict(c),
        "efficiency": float(lp.efficiency(task, way, on, c)),
        "memory_gib": {name: float(part) / GIB for name, part in lp.memory_bytes(task, way, c).items()},
        "flop_per_byte": {k: v for k, v in (flop_per_byte | offload).items() if v < float("inf")},
        "threshold_flop_per_byte": on.thresholds,
    }  # fmt: skip
