"""Lamy-Poirier 2022: breadth-first against depth-first pipelines at small batches per GPU.

The paper compares its own implementation, which sends between stages and reduces gradients beside the compute, with
Megatron-LM, which then did neither with pipeline stages (recalled): each schedule has its own framework's overlap here.
"""

from __future__ import annotations

from dataclasses import replace

from planner.hardware import Framework, load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import Transformer, from_shape
from planner.reproductions.claims import THEIRS, Claim, Mark, Paper, near
from planner.schedules import Pipeline, get_schedule
from planner.search import Fixed, recommend
from planner.setup import Setup

BATCHES = (8, 9, 12, 16, 24)
GPUS = 64
OVERLAP = 0.9  # share of sends and reductions that the paper's implementation hides, as of Megatron-LM's without stages


def _best_s(
    model: Transformer, network: str, framework: Framework, batch: int, schedules: tuple[str, ...]
) -> float | None:
    """Seconds a step of the fastest layout on 8 DGX-1 with tensor ranks inside a node, None where none fits."""
    cluster = load_cluster("dgx-1-v100", network=network)
    found = recommend(
        Setup(model, cluster, framework), gpus=GPUS, global_batch=batch, precision=Precision.FP16,
        attention=Attention.FUSED, fixed=Fixed(schedule=schedules, cp=(1,), tp=(1, 2, 4, 8)), top=1,
    )  # fmt: skip
    return float(found.estimate.step_time_s[found.best[0]]) if len(found.best) else None


def _gains(model: Transformer, network: str, mark: Mark) -> list[Claim]:
    """Gain of breadth-first over the better of 1F1B and interleaved, and the largest over small batches."""
    megatron = load_framework("megatron-lm")
    their_own = replace(megatron, overlap_pipeline=OVERLAP, overlap_grad_reduce_pipelined=OVERLAP)
    out, gains = [], []
    for batch in BATCHES:
        base, better = (
            _best_s(model, network, framework, batch, schedules)
            for framework, schedules in ((megatron, ("1f1b", "interleaved")), (their_own, ("breadth-first",)))
        )
        gain = None if base is None or better is None else base / better
        gains.append(gain or 0.0)
        out.append(
            Claim(
                statement=f"52B on 64 V100, {network}, batch {batch}: breadth-first over depth-first", unit="x",
                mark="derived", theirs=None, ours=gain,
            )
        )  # fmt: skip
    largest = Claim(
        statement=f"52B on 64 V100, {network}: the largest gain at batches of {BATCHES[0]} to {BATCHES[-1]}", unit="x",
        mark=mark, theirs=1.43, ours=max(gains), low=1.2, high=1.53,
        note="depth-first wants a multiple of the stages, breadth-first any batch of at least their number",
    )  # fmt: skip
    return [largest, *out]


def paper() -> Paper:
    """All claims."""
    model = from_shape(
        family="gpt",
        layers=64,
        hidden=8192,
        ffn=32_768,
        heads=64,
        kv_heads=64,
        vocab=51_200,
        seq_len=1024,
        name="gpt-52b",
    )
    pipe = Pipeline(p=8, m=16, v=8)
    bubble = float(get_schedule("breadth-first").bubble_s(pipe, 1.0, 1.0, 1.0)) / (16 * 3.0)
    return Paper(
        name="lamy-poirier-2022",
        title="Breadth-first pipeline parallelism",
        source="Lamy-Poirier 2022, arXiv 2211.05953; the 52B's shape recalled",
        claims=(
            near(
                "bubble over compute, p = 8, m = 16, v = 8: (p - 1)/(m v)", "", "derived", 7 / 128, bubble, within=1e-9,
                basis=THEIRS,
            ),
            *_gains(model, "infiniband-edr", "read"),
            *_gains(model, "ethernet-25g", "recalled"),
        ),
    )  # fmt: skip
