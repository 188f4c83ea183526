"""Hagemann et al. 2023: which layouts train LLaMA most efficiently on A100s."""

from __future__ import annotations

from dataclasses import replace

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision, Recompute, Split
from planner.models import load_model
from planner.reproductions.claims import Claim, Paper, near
from planner.reproductions.layouts import one
from planner.search import Fixed, recommend
from planner.setup import Setup

CLUSTER = "dgx-a100-80gb"
THEIR_TRAINER = "aa-scaling"
THEIR_SPLIT = Split.PARAMETERS  # as its profile says
BATCH = 2048
VOCAB = 128_000
# Model, GPUs, tp, pp, seconds a step, MFU of the best measured layout; micro-batch 1, nothing recomputed in all. The
# degrees, tensor and pipeline alike, that the paper tried.
BEST = (
    ("llama-13b", 64, 1, 1, 26.54, 0.706, (1, 2)),
    ("llama-30b", 256, 2, 4, 22.67, 0.492, (1, 2, 4)),
    ("llama-65b", 128, 2, 4, 79.31, 0.553, (2, 4, 8)),
)


def _row(name: str, gpus: int, tp: int, pp: int, step_s: float, mfu: float, tried: tuple[int, ...]) -> list[Claim]:
    """The best measured layout by our models, and our own choice in the paper's sweep."""
    model = replace(load_model(name), vocab=VOCAB)
    here = one(
        model, CLUSTER, THEIR_TRAINER, schedule="1f1b", tp=tp, pp=pp, dp=gpus // (tp * pp), micro_batch=1, zero=1,
        global_batch=BATCH, attention=Attention.FLASH2, precision=Precision.BF16, layer_split=THEIR_SPLIT,
    )  # fmt: skip
    cluster = load_cluster(CLUSTER)
    swept = Fixed(
        cp=(1,), zero=(1,), schedule=("1f1b",), virtual_stages=(1,), layer_split=(THEIR_SPLIT,), tp=tried,
        pp=tried, micro_batch=(1, 2, 4, 8), recompute=(Recompute.NONE, Recompute.FULL),
        sequence_parallel=(False,),
    )  # fmt: skip
    found = recommend(
        Setup(model, cluster, load_framework(THEIR_TRAINER)), gpus=gpus, global_batch=BATCH, precision=Precision.BF16,
        attention=Attention.FLASH2, fixed=swept, top=1,
    )  # fmt: skip
    pick = found.estimate.layouts.row(int(found.best[0]))
    what = f"{name} on {gpus} A100"
    chosen = (
        f"our pick: tp {pick['tp']} pp {pick['pp']} micro-batch {pick['micro_batch']} recompute {pick['recompute']}"
    )
    loss = here.step_time_s / float(found.estimate.step_time_s[found.best[0]])
    return [
        near(f"{what}, best layout (tp {tp} pp {pp} micro-batch 1)", "s", "read", step_s, here.step_time_s, within=0.1),
        near(f"{what}, MFU of it", "", "read", mfu, here.mfu, within=0.1),
        Claim(
            statement=f"{what}: our time of their best over that of our pick", unit="x", mark="read", theirs=1.0,
            ours=loss, low=1.0, high=1.05, note=chosen,
        ),
        near(f"{what}: micro-batch 1 is best", "", "read", 1.0, pick["micro_batch"], within=0.0),
    ]  # fmt: skip


def paper() -> Paper:
    """All claims."""
    return Paper(
        name="hagemann-2023",
        title="Efficient parallelization layouts for large-scale distributed model training",
        source="Hagemann et al. 2023, arXiv 2311.05610; these runs are among those that calibrated the A100's profile",
        claims=tuple(claim for row in BEST for claim in _row(*row)),
    )
