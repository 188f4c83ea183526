"""Passes of the trainer's own layers, timed one by one over a grid of shapes, and prices fitted to them.

    mpirun -n 2 python benchmarks/trainer_passes.py prices.toml

Every rank measures at the same time, as ranks train at the same time; the first one's figures are written.
The model is cut into three stages on one rank (embedding, two layers, head) and stepped; the executor's own record
of each operation is the measurement, so conditions are those of training. Steps in which others
had this processor don't count (`planner.trainer.stopwatch`).
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.cli.process import keep_freed_memory, share_processors, started_by_mpirun

share_processors()  # before numpy is loaded

import numpy as np
from trainer_prices import FEATURES, PriceSizes, features, fit

from planner.models import Transformer, from_shape
from planner.schedules.operations import Operation
from planner.trainer.arrays import xp_for
from planner.trainer.communicator import Communicator, RankGroup
from planner.trainer.executor import Batch
from planner.trainer.optimizers import Adam
from planner.trainer.serial import run_serial
from planner.trainer.stopwatch import Stopwatch, usual_s
from planner.trainer.task import Task
from planner.trainer.worker import Worker

LAYERS = 2
LEAST_STEPS = 6
ROUNDS = 3  # over the grid: what slows the machine for a while then spoils one time of three
STAGES = ("embedding", "layer", "head")
# Two micro-batches in flight, as in a pipeline: one has its backward pass whole, one in two parts.
ROW = [
    *(Operation(s, "F", i) for i in (0, 1) for s in (0, 1, 2)),
    *(Operation(s, "B", 0) for s in (2, 1, 0)),
    *(Operation(s, k, 1) for s in (2, 1, 0) for k in "IW"),
]


@dataclass(frozen=True)
class Sample:
    """One measured pass: which (`gelu layer F`), its features, its seconds."""

    key: str
    row: list[float]
    time_s: float


def fastest(repeated: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Of the same passes timed several times, at different times, the fastest of each."""
    return [min(same, key=lambda sample: sample.time_s) for same in zip(*repeated, strict=True)]


def grid(quick: bool = False) -> Iterator[tuple[Transformer, int]]:
    """Models and sequences per micro-batch: both kinds of MLP and norm, widths, lengths."""
    sizes = ((64, 1), (64, 8), (128, 4), (256, 2))
    for family in ("gpt", "llama"):
        for j, hidden in enumerate((64, 128) if quick else (64, 128, 192, 256)):
            for i, (seq_len, b) in enumerate(sizes[:2] if quick else sizes):
                # Ratios vary, so that each size's seconds can be told apart.
                ratio, heads = (4, 3, 2, 4)[(i + j) % 4], hidden // (32, 32, 16, 64)[i]
                kv_heads = max(heads // (1, 2, 2, 1)[(i + 2 * j) % 4], 1)
                yield from_shape(
                    family=family, layers=LAYERS, hidden=hidden, ffn=ratio * hidden, heads=heads, kv_heads=kv_heads,
                    vocab=256, seq_len=seq_len,
                ), b  # fmt: skip


def passes(xp: Any, model: Transformer, b: int, seconds: float, wait: Callable[[], None]) -> list[Sample]:
    """Time every kind of pass of one model; `wait` is called before (ranks measure at the same time)."""
    task = Task(model=model, rows=[ROW], micro_batches=2, layers_per_stage=(0, LAYERS, 0), clip=1.0)
    tokens = np.random.default_rng(0).integers(0, model.vocab, (2, b, model.seq_len + 1))
    batch = Batch(
        tokens=xp.asarray(tokens[..., :-1]), targets=xp.asarray(tokens[..., 1:]), num_tokens=2 * b * model.seq_len
    )

    def program(communicator: Communicator) -> list[Sample]:
        worker = Worker(communicator, task, Adam())
        times: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        shares: list[float] = []
        worker.step(batch)
        wait()
        # On a busy machine up to four times as long, for a few undisturbed steps.
        start = time.perf_counter()
        while (past := time.perf_counter() - start) < 4 * seconds or len(shares) < LEAST_STEPS:
            if past > seconds and len(shares) >= LEAST_STEPS and sum(s > 0.97 for s in shares) >= LEAST_STEPS:
                break
            worker.executor.events.clear()
            watch = Stopwatch()
            worker.step(batch)
            whole, share = watch.stop()
            shares.append(share)
            this: dict[tuple[str, str], list[float]] = defaultdict(list)
            for e in worker.executor.events:
                this[STAGES[e.stage], e.kind].append(e.end_s - e.start_s)
            run = worker.executor.events[-1].end_s - worker.executor.events[0].asked_s
            this["update", "U"].append(whole - run)
            for key, found in this.items():
                times[key].append(found)
        count = sum(unit.num_elements(1) for unit in worker.store.units.values())
        means = {key: [float(np.mean(t)) for t in found] for key, found in times.items()}
        return [_sample(model, b, *key, usual_s(mean, shares), count) for key, mean in means.items()]

    return run_serial(xp, 1, program)[0]


def _sample(model: Transformer, b: int, part: str, kind: str, time_s: float, count: int) -> Sample:
    row = features(part, PriceSizes(model=model, b=b, tokens=model.seq_len), count)
    time_s = time_s / LAYERS if part == "layer" else time_s
    return Sample(f"{'swiglu' if model.gated else 'gelu'} {part} {kind}" if part != "update" else "update", row, time_s)


def collectives(communicator: Communicator, repeats: int = 20) -> list[Sample]:
    """Time each collective over all ranks, and a message to the next rank and back, by size in bytes."""
    xp, group, samples = communicator.xp, RankGroup("all", tuple(range(communicator.size))), []
    peer = communicator.rank ^ 1

    def there_and_back(x: Any) -> None:
        if communicator.rank % 2 == 0:
            communicator.send(x, peer, 1)
        communicator.recv(peer, 1, x.shape, x.dtype)
        if communicator.rank % 2:
            communicator.send(x, peer, 1)

    operations: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: communicator.all_reduce(x, group),
        "all_gather": lambda x: communicator.all_gather(x[: len(x) // communicator.size], group),
        "reduce_scatter": lambda x: communicator.reduce_scatter(x, group),
        "send": there_and_back,
    }
    for name, operation in operations.items():
        for size in (2**k for k in range(8, 22, 2)):
            x = xp.zeros(size // 4 // communicator.size * communicator.size, dtype=xp.float32)
            communicator.barrier()
            timings = []
            for _ in range(repeats):
                watch = Stopwatch()
                operation(x)
                timings.append(watch.stop())
            communicator.flush()
            took = usual_s(*zip(*timings, strict=True)) / (2 if name == "send" else 1)
            samples.append(Sample(name, [1.0, x.nbytes / 1e6], took))
    return samples


def measure(output: Path, seconds: float, quick: bool, device: str) -> None:
    """Time passes and messages, and write their prices; `seconds` of each model of the grid."""
    keep_freed_memory()
    xp, communicator = xp_for(device), None
    if started_by_mpirun():
        from planner.trainer.mpi import MPICommunicator

        communicator = MPICommunicator(xp)
    wait = communicator.barrier if communicator else lambda: None
    rounds = [[passes(xp, model, b, seconds / ROUNDS, wait) for model, b in grid(quick)] for _ in range(ROUNDS)]
    samples = [sample for repeated in zip(*rounds, strict=True) for sample in fastest(repeated)]
    if communicator and communicator.size > 1 and communicator.size % 2 == 0:
        samples += collectives(communicator)
    if communicator and communicator.rank:
        return
    by_key = defaultdict(list)
    for sample in samples:
        by_key[sample.key].append(sample)
    fits = {key: fit([s.row for s in group], [s.time_s for s in group]) for key, group in sorted(by_key.items())}
    lines = [
        "# Written by benchmarks/trainer_passes.py: seconds per unit of each size, by pass of the trainer's parts.",
        f"# {', '.join(f'{part}: {names}' for part, names in FEATURES.items())}; messages: fixed, megabytes",
        f"ranks = {communicator.size if communicator else 1}",
        "[seconds]",
        *(f'"{key}" = [{", ".join(f"{x:.6g}" for x in f.seconds)}]' for key, f in fits.items()),
        "[median_error]",
        *(f'"{key}" = {f.median_error:.4f}' for key, f in fits.items()),
        "[worst_error]",
        *(f'"{key}" = {f.worst_error:.4f}' for key, f in fits.items()),
    ]
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for key, f in fits.items():
        print(f"{key:<20} {f.measured:>3} passes, median error {f.median_error:.1%}, worst {f.worst_error:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=0.4, help="How long each model of the grid is stepped.")
    parser.add_argument("--quick", action="store_true", help="A small grid: rough prices in a few seconds.")
    parser.add_argument("--device", default="cpu", help="cpu or gpu")
    asked = parser.parse_args()
    measure(asked.output, asked.seconds, asked.quick, asked.device)


if __name__ == "__main__":
    main()
