"""Seq1F1B: slices of the sequence through the pipeline."""

from __future__ import annotations

from planner.base.units import GIB
from planner.models import from_shape
from planner.reproductions.claims import THEIRS, Claim, Paper, near
from planner.reproductions.layouts import Outcome, one
from planner.schedules import Pipeline, get_schedule

# GPT-7B on 32 A100-80GB, tp 8 pp 4, 4 slices (degrees and slices recalled), tokens/s of all GPUs (read in the authors'
# repository): sequence, micro-batches, 1F1B, Seq1F1B; None where it ran out of memory.
MEASURED = (
    (32_768, 8, 48_189.47, 53_484.52),
    (32_768, 16, 55_333.16, 55_765.31),
    (65_536, 8, 37_342.92, 43_296.70),
    (131_072, 8, None, 30_392.34),
)


def _run(
    sequence: int,
    micro_batches: int,
    slices: int,
    *,
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    pp: int = 4,
) -> Outcome:
    """A GPT of the paper's on tp 8, its 7B unless other sizes are given."""
    model = from_shape(
        family="gpt", layers=layers, hidden=hidden, ffn=4 * hidden, heads=heads, kv_heads=heads, vocab=32_768,
        seq_len=sequence, name="gpt",
    )  # fmt: skip
    return one(
        model, "dgx-a100-80gb", schedule="1f1b" if slices == 1 else "seq1f1b", tp=8, pp=pp, dp=1, micro_batch=1,
        global_batch=micro_batches, zero=0, sequence_slices=slices, sequence_parallel=True,
    )  # fmt: skip


def _longest() -> list[Claim]:
    """30B on 64K tokens and 64 A100 without recomputation: sliced it fits, in one piece it does not."""
    sizes = {"layers": 64, "hidden": 6144, "heads": 64, "pp": 8}
    sliced, whole = (_run(65_536, 16, k, **sizes) for k in (4, 1))
    capacity = 80 * GIB
    what = "30B, 64K tokens, 64 A100, nothing recomputed: peak memory over the GPU's"
    return [
        Claim(
            statement=f"{what}, Seq1F1B (fits)", unit="x", mark="read", theirs=1.0, ours=sliced.memory_bytes / capacity,
            low=0.0, high=1.0, note="4 slices, pp 8 (recalled)",
        ),
        Claim(
            statement=f"{what}, 1F1B (does not)", unit="x", mark="read", theirs=1.0, ours=whole.memory_bytes / capacity,
            low=1.0, high=1e9,
        ),
    ]  # fmt: skip


def _row(sequence: int, micro_batches: int, plain: float | None, sliced: float) -> list[Claim]:
    """Speed-up of slicing, and its throughput."""
    a, b = _run(sequence, micro_batches, 1), _run(sequence, micro_batches, 4)
    tokens = sequence * micro_batches
    what = f"7B, {sequence // 1024}K tokens, {micro_batches} micro-batches"
    out = [near(f"{what}: Seq1F1B", "tokens/s", "recalled", sliced, tokens / b.step_time_s, within=0.2)]
    if plain is not None:
        out.append(
            near(
                f"{what}: Seq1F1B over 1F1B", "x", "recalled", sliced / plain, a.step_time_s / b.step_time_s, within=0.1
            )
        )
    else:
        out.append(
            Claim(
                statement=f"{what}: memory of 1F1B, which ran out, over the GPU's", unit="x", mark="recalled",
                theirs=1.0, ours=a.memory_bytes / (80 * GIB), low=1.0, high=1e9,
            )
        )  # fmt: skip
    half = b.memory_bytes / a.memory_bytes
    out.append(
        Claim(
            statement=f"{what}: memory of Seq1F1B over 1F1B's (half, at best)", unit="x", mark="read", theirs=0.5,
            ours=half, low=0.3, high=0.85,
        )
    )  # fmt: skip
    return out


def paper() -> Paper:
    """All claims."""
    pipe = {"p": 4, "m": 8}
    plain = float(get_schedule("1f1b").bubble_s(Pipeline(**pipe), 1.0, 1.0, 1.0))
    sliced = float(get_schedule("seq1f1b").bubble_s(Pipeline(**pipe, k=4), 1.0, 1.0, 1.0))
    bubble = near("bubble over 1F1B's with 4 slices", "", "derived", 0.25, sliced / plain, within=1e-9, basis=THEIRS)
    return Paper(
        name="seq1f1b",
        title="Seq1F1B: efficient sequence-level pipeline parallelism for large language model training",
        source="Sun et al. 2024, arXiv 2406.03488; throughputs from the authors' repository, degrees recalled",
        claims=(bubble, *_longest(), *(claim for row in MEASURED for claim in _row(*row))),
    )
