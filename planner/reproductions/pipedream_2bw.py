"""PipeDream-2BW: pipelines that are never drained, two versions of the weights."""

from __future__ import annotations

from dataclasses import replace

from planner.base.errors import PlannerError
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import from_shape
from planner.reproductions.claims import THEIRS, Claim, Paper, near
from planner.schedules import Pipeline, get_schedule
from planner.search import Fixed, recommend
from planner.setup import Setup

# GPT-2.2B on 8 V100-16GB, eight stages, global batch 64 and 256: sequences/s of GPipe, Flush, 2BW, read off the paper's
# figure, give or take 2.
MEASURED = ((64, 18.0, 26.0, 43.0), (256, 18.0, 38.0, 44.0))


def _throughput(schedule: str, batch: int) -> tuple[float | None, str]:
    """Sequences a second of the best layout in eight stages, or why there is none."""
    model = from_shape(
        family="gpt",
        layers=32,
        hidden=2304,
        ffn=9216,
        heads=32,
        kv_heads=32,
        vocab=51_200,
        seq_len=512,
        name="gpt-2.2b",
    )
    cluster = replace(load_cluster("dgx-1-v100"), accelerator=load_accelerator("v100-sxm-16gb"))
    try:
        found = recommend(
            Setup(model, cluster, load_framework(cluster.framework)),
            gpus=8, global_batch=batch, precision=Precision.FP16, attention=Attention.UNFUSED,
            fixed=Fixed(pp=(8,), tp=(1,), cp=(1,), schedule=(schedule,)), top=1,
        )  # fmt: skip
    except PlannerError as error:
        return None, f"not yet: {error}"
    if not len(found.best):
        return None, "nothing fits in memory by our models"
    i = int(found.best[0])
    row = found.estimate.layouts.row(i)
    note = f"micro-batch {row['micro_batch']}, recompute {row['recompute']}"
    return batch / float(found.estimate.step_time_s[i]), note


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def _row(batch: int, gpipe: float, flush: float, double: float) -> list[Claim]:
    """2BW and the flushed 1F1B against each other and GPipe, at one batch."""
    (g, note_g), (f, note_f), (d, note_d) = (_throughput(s, batch) for s in ("gpipe", "1f1b", "2bw"))
    what = f"2.2B on 8 V100, batch {batch}"
    note_f += "; the paper's framework of 2020 has no profile here, and its micro-batch is not known"
    note_d += "; larger micro-batches leave fewer of them, and then draining costs more"
    return [
        near(f"{what}: PipeDream-Flush (1F1B)", "seq/s", "read", flush, f, within=0.25, note=note_f),
        near(f"{what}: 2BW over Flush", "x", "read", double / flush, _ratio(d, f), within=0.25, note=note_d),
        near(f"{what}: Flush over GPipe", "x", "read", flush / gpipe, _ratio(f, g), within=0.35, note=note_g),
    ]


def paper() -> Paper:
    """All claims."""
    pipe = Pipeline(p=8, m=16)
    schedule = get_schedule("2bw")
    versions = near(
        "versions of the weights on a rank", "", "read", 2.0, float(schedule.weight_versions(pipe, 0)), within=0.0,
        basis=THEIRS,
    )  # fmt: skip
    idle = float(schedule.bubble_s(pipe, 1.0, 1.0, 1.0))
    bubble = Claim(
        statement="bubble of a pipeline that is never drained, steady state", unit="s", mark="read", theirs=0.0,
        ours=idle, low=-1e-9, high=1e-9, basis=THEIRS,
    )  # fmt: skip
    return Paper(
        name="pipedream-2bw",
        title="Memory-efficient pipeline-parallel DNN training",
        source="Narayanan et al. 2021, arXiv 2006.09503; bars read off its figures",
        claims=(versions, bubble, *(claim for row in MEASURED for claim in _row(*row))),
    )
