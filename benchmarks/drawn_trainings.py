"""Trainings with three choices drawn at once, each against plain training: loss, gradients, two steps' parameters.

python benchmarks/drawn_trainings.py --cases 300
mpirun -n 4 python benchmarks/drawn_trainings.py --cases 20
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from planner.base.errors import InputError, LayoutError
from planner.layouts import Recompute
from planner.schedules import SCHEDULES, Pipeline
from planner.trainer.executor import rank_of_passes
from planner.trainer.optimizers import SGD
from planner.trainer.task import Task, check_task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, gpt, llama, loud, plain_rows

TOLERANCE = 1e-10
MODELS = {
    "llama": llama(8),
    "gpt, tied": gpt(8),
    "windows": replace(llama(8), window=3, num_window_layers=5),
    "latents": replace(llama(8, kv_heads=4), q_lora_rank=6, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3),
    "mixture": replace(llama(8), num_experts=4, top_k=2, moe_ffn=12, num_dense_layers=1),
    "modules": replace(llama(8), num_mtp_layers=2),
    "modules, tied": replace(gpt(8), num_mtp_layers=1),
}
MODELS["deepseek"] = replace(
    MODELS["latents"], num_experts=8, top_k=2, expert_groups=4, top_k_groups=2, moe_ffn=12, num_shared_experts=1,
    num_dense_layers=1, num_mtp_layers=1, router="sigmoid 2.5",
)  # fmt: skip
SIZES = [(1, 2, 1, 1), (2, 4, 1, 1), (4, 4, 1, 1), (2, 4, 2, 1), (4, 8, 2, 1), (2, 4, 1, 2), (2, 4, 2, 2), (1, 2, 8, 1)]
SCHEDULED = [
    {"schedule": name, "pipe": Pipeline(p=p, m=m, v=v, k=k)}
    for name, s in SCHEDULES.items()
    for p, m, v, k in SIZES
    if s.synchronous and not any(np.any(rule.broken) for rule in s.rules(Pipeline(p=p, m=m, v=v, k=k)))
]
WAYS: dict[str, list[dict[str, Any]]] = {
    "schedule": SCHEDULED,
    "vocabulary": [x for x in SCHEDULED if SCHEDULES[x["schedule"]].barriers],
    "context": [
        {"cp": 2}, {"cp": 4}, {"cp": 2, "zigzag": False}, {"cp": 2, "ulysses": 2}, {"cp": 4, "ulysses": 2},
        {"cp": 4, "inner_ring": 2},
        {"cp": 2, "gathered_keys": True},
    ],
    "experts": [
        *({"model": "mixture", "ep": ep} for ep in (1, 2, 4)),
        *({"model": "mixture", "tp": n, "ep": n, "picks": True} for n in (2, 4)),
    ],
    "multi-token prediction": [
        {"model": "modules"}, {"model": "modules, tied"},
        *({"model": "deepseek", "ep": ep} for ep in (1, 2, 4)),
        {"model": "deepseek", "tp": 2, "ep": 2, "picks": True},
        {"model": "deepseek", "tp": 2, "ep": 2, "sequence_parallel": True},
    ],
    "tensor": [{"tp": 2}, {"tp": 2, "sequence_parallel": True}],
    "sharding": [{"dp": 2, "zero": z} for z in range(4)] + [{"dp": 4, "zero": z, "dp_replicate": 2} for z in (1, 2, 3)],
    "recomputation": [
        {"recompute": Recompute.SELECTIVE}, {"recompute": Recompute.FULL},
        *({"recompute": Recompute.FULL, "recompute_layers": n} for n in (1, 2)),
    ],
    "activations on the host": [{"offload_layers": n} for n in (1, 2, 3)],
    "states on the host": [
        *({"offload_fraction": x} for x in (0.5, 1.0)),
        {"dp": 2, "zero": 3, "offload_fraction": 1.0, "offload_parameters": True},
    ],
}  # fmt: skip
"""Kinds of choice, each with its ways; a case has one way of each of three kinds."""


def task_of(choices: dict[str, Any], model: str) -> Task:
    """The training that a case asks for."""
    name, pipe = choices.get("schedule", "1f1b"), choices.get("pipe", Pipeline(p=1, m=2))
    whole = MODELS[choices.get("model", model)]
    rest = {key: value for key, value in choices.items() if key not in ("schedule", "pipe", "model")}
    return Task(
        model=whole, rows=SCHEDULES[name].order(pipe).rows(), micro_batches=pipe.m, dtype=np.float64,
        bounds=tuple(whole.seq_len * i // pipe.k for i in range(pipe.k + 1)),
        layer_at_a_time=SCHEDULES[name].layer_at_a_time, **rest,
    )  # fmt: skip


def cases(seed: int, ranks: int | None, most: int = 32) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Task]]:
    """Cases that the trainer takes, without end: kinds, choices and task."""
    rng = np.random.default_rng(seed)
    while True:
        kinds = [str(x) for x in rng.choice(sorted(WAYS), 3, replace=False)]
        if {"schedule", "vocabulary"} <= set(kinds) or {"experts", "multi-token prediction"} <= set(kinds):
            continue
        choices: dict[str, Any] = {}
        for kind in kinds:
            choices |= WAYS[kind][int(rng.integers(len(WAYS[kind])))]
        task = task_of(choices, str(rng.choice(["llama", "gpt, tied", "windows", "latents"])))
        rank_of_passes(task.rows)
        if (ranks is not None and task.num_ranks != ranks) or task.num_ranks > most:
            continue
        split = any(op.kind == "I" for row in task.rows for op in row)
        if task.offload_layers and (split or len(task.bounds) > 2):
            continue
        if len(data(task.model)) % (task.dp * task.micro_batches):
            continue
        try:
            check_task(task)
        except (LayoutError, InputError):
            continue
        yield tuple(sorted(kinds)), choices, task


def worst_of(found: Any, expected: Any) -> float:
    """The largest deviation of loss, gradients and parameters, each over its tensor's largest element."""
    worst = abs(found[0] - expected[0]) / abs(expected[0])
    for mine, exact in zip(found[1:], expected[1:], strict=True):
        for name, value in mine.items():
            worst = max(worst, float(np.abs(value - exact[name]).max() / np.abs(exact[name]).max()))
    return float(worst)


def outcome(communicator: Any, task: Task, tokens: Any) -> Any:
    """Loss, gradients and, two steps later, parameters on a rank."""
    worker = loud(Worker(communicator, task, SGD(learning_rate=0.1)))
    batch = batch_of(task, worker.mesh.replica, tokens)
    loss = worker.gradients(batch)
    gradients = {name: np.array(value) for name, value in worker.whole().items()}
    for _ in range(2):
        worker.step(batch)
    return loss, gradients, worker.whole("parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    mpi = "OMPI_COMM_WORLD_SIZE" in __import__("os").environ
    world: Any = None
    if mpi:
        from planner.trainer.mpi import MPICommunicator

        world = MPICommunicator(np)
    from planner.trainer.serial import run_serial

    plain = {}
    for model in MODELS.values():
        tokens = data(model)
        one = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64)
        plain[model] = run_serial(np, 1, lambda c, one=one, tokens=tokens: outcome(c, one, tokens))[0]
    worst, pairs, met = 0.0, 0, Counter[str]()
    drawn = cases(asked.seed, world.size if mpi else None)
    for _ in range(asked.cases):
        kinds, choices, task = next(drawn)
        tokens = data(task.model)
        if mpi:
            off = worst_of(outcome(world, task, tokens), plain[task.model])
            world.barrier()
        else:
            ends = run_serial(np, task.num_ranks, lambda c, task=task, tokens=tokens: outcome(c, task, tokens))
            off = max(worst_of(end, plain[task.model]) for end in ends)
        if not off <= TOLERANCE:
            sys.exit(f"{kinds}: {choices}: off by {off}")
        worst = max(worst, off)
        met.update(kinds)
        pairs += 1
    if not mpi or world.rank == 0:
        ranks = f"{world.size} MPI ranks" if mpi else "serial"
        print(f"{pairs} cases of three choices ({ranks}): worst deviation {worst:.1e}; {dict(met)}")


if __name__ == "__main__":
    main()
