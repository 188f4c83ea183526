"""Ways to train on groups of machines that differ, as a record and a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.report.plain_table import plain_table, stacked
from planner.report.tables import layout_text

if TYPE_CHECKING:
    from planner.hardware.groups import MixedCluster
    from planner.search.mixed import MixedQuestion, MixedWay


def mixed_record(asked: MixedQuestion, mixed: MixedCluster, ways: Sequence[MixedWay]) -> dict[str, Any]:
    """The groups, and the ways, fastest first."""
    setup, groups = asked.setups[0], mixed.groups
    return {
        "model": setup.model.name, "name": mixed.name, "framework": setup.framework.name, "global_batch": asked.batch,
        "network": None if mixed.network is None else mixed.network.name,
        "groups": [{"cluster": g.cluster.name, "network": g.cluster.network.name, "gpus": g.gpus} for g in groups],
        "ways": [_record(asked, w) for w in ways],
    }  # fmt: skip


def _record(asked: MixedQuestion, w: MixedWay) -> dict[str, Any]:
    parts = [
        {"group": g, "cluster": asked.setups[g].cluster.name, "gpus": asked.gpus[g], "layout": w.layouts[k].row(0),
         "global_batch": w.batches[k] if w.batches else asked.batch, "layers": list(w.layers[k]) if w.layers else None}
        for k, g in enumerate(w.groups)
    ]  # fmt: skip
    rate = asked.batch * float(asked.setups[0].model.seq_len) / w.step_s
    out = [g for g in range(len(asked.gpus)) if g not in w.groups]
    return {"way": w.name, "step_time_s": w.step_s, "tokens_per_s": rate, "parts": parts, "left_out": out}


def _said(way: str, part: Mapping[str, Any]) -> str:
    """What one group does."""
    row = part["layout"]
    if part["layers"] is None:
        return f"{part['cluster']}: {part['global_batch']:,} sequences, {layout_text(row)}"
    runs = [(n, len(list(same))) for n, same in groupby(part["layers"])]
    layers = " ".join(f"{times} x {n}" if times > 1 else str(n) for n, times in runs)
    return f"{part['cluster']}: tp {row['tp']} pp {len(part['layers'])}, layers {layers}"


def mixed_view(r: Mapping[str, Any]) -> RenderableType:
    """The fastest way and what it leaves out, then all of them."""
    best, names = r["ways"][0], [g["cluster"] for g in r["groups"]]
    out = ", ".join(names[g] for g in best["left_out"])
    has = ", ".join(f"{g['gpus']:,} of {g['cluster']}" for g in r["groups"])
    table = plain_table("step", "tokens/s", "way", "groups", numbers=(0, 1))
    for w in r["ways"]:
        common = w["parts"][0]["layout"]
        more = f" dp {common['dp']} mb {common['micro_batch']} {common['recompute']}" if w["way"] == "pipeline" else ""
        said = "; ".join(_said(w["way"], part) for part in w["parts"])
        table.add_row(f"{w['step_time_s']:.4g} s", f"{w['tokens_per_s']:,.0f}", w["way"] + more, said)
    return stacked(
        Text(
            f"{r['model']} on {r['name']} ({has}), batch {r['global_batch']:,}: {best['way']}, "
            f"{best['step_time_s']:.4g} s per step, " + (f"without {out}" if out else "on all groups"), style="bold",
        ),
        f"  {r['framework']}; between groups: {r['network'] or 'the slower of their networks'}", "", table, "",
        "A pipeline over groups is 1F1B with ZeRO 1, its layers by the exact partition within each stage's memory, "
        "simulated; replicas of a group are its own search.",
    )  # fmt: skip
