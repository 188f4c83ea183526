"""What each process of the MPI tests runs: tasks of so many ranks, their gradients against plain training's.

mpirun -n 4 python -m tests.trainer.mpi_program
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.mpi import MPICommunicator
from planner.trainer.optimizers import SGD
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, llama, loud, plain_rows, run

MODEL = llama(8)
MIXTURE = replace(llama(4), num_experts=4, top_k=2, moe_ffn=12, num_dense_layers=1)
DEEPSEEK = replace(
    llama(4, kv_heads=4), q_lora_rank=6, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3, num_experts=8, top_k=2,
    expert_groups=4, top_k_groups=2, moe_ffn=12, num_shared_experts=1, num_dense_layers=1, num_mtp_layers=2,
    router="sigmoid 2.5",
)  # fmt: skip

TASKS: dict[int, list[tuple[str, Pipeline, dict[str, Any]]]] = {
    2: [
        ("1f1b", Pipeline(p=1, m=2), {"dp": 2, "zero": 3}),
        ("1f1b", Pipeline(p=1, m=2), {"tp": 2, "sequence_parallel": True}),
        ("1f1b", Pipeline(p=1, m=2), {"tp": 2, "recompute": Recompute.FULL}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "ulysses": 2, "zero": 3}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "gathered_keys": True}),
        ("1f1b", Pipeline(p=2, m=4), {}),
        ("gpipe", Pipeline(p=2, m=4), {}),
        ("interleaved", Pipeline(p=2, m=4, v=2), {}),
        ("breadth-first", Pipeline(p=2, m=4, v=2), {}),
        ("seq1f1b", Pipeline(p=2, m=4, k=2), {}),
        ("seq1f1b-zb", Pipeline(p=2, m=4, k=2), {}),
        ("zb-h1", Pipeline(p=2, m=4), {}),
        ("zb-v", Pipeline(p=2, m=4, v=2), {}),
        ("vocab-1", Pipeline(p=2, m=4), {}),
        ("vocab-2", Pipeline(p=2, m=4), {"zero": 1}),
        ("interlaced", Pipeline(p=2, m=4), {}),
        ("v-half-vocab-2", Pipeline(p=2, m=4, v=2), {}),
        ("1f1b", Pipeline(p=1, m=2), {"dp": 2, "ep": 2, "model": MIXTURE}),
        ("1f1b", Pipeline(p=2, m=4), {"offload_layers": 2}),
        ("1f1b", Pipeline(p=2, m=4), {"offload_layers": 2, "recompute": Recompute.FULL, "recompute_layers": 1}),
        ("1f1b", Pipeline(p=2, m=4), {"offload_modules": ("core_attn", "mlp_norm")}),
        ("1f1b", Pipeline(p=1, m=2), {"dp": 2, "ep": 2, "model": MIXTURE, "offload_layers": 3}),
        ("1f1b", Pipeline(p=2, m=4), {"model": DEEPSEEK, "recompute": Recompute.FULL}),
        ("zb-v", Pipeline(p=2, m=4, v=2), {"model": DEEPSEEK}),
        ("1f1b", Pipeline(p=1, m=2), {"tp": 2, "ep": 2, "picks": True, "model": DEEPSEEK}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "ep": 2, "zero": 3, "model": DEEPSEEK}),
    ],
    4: [
        ("1f1b", Pipeline(p=1, m=2), {"dp": 2, "tp": 2, "zero": 1, "sequence_parallel": True}),
        ("1f1b", Pipeline(p=2, m=4), {"dp": 2, "zero": 2}),
        ("1f1b", Pipeline(p=1, m=2), {"dp": 4, "zero": 3, "dp_replicate": 2}),
        ("interleaved", Pipeline(p=2, m=4, v=2), {"dp": 2, "zero": 3}),
        ("zb-h1", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True, "recompute": Recompute.SELECTIVE}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 4, "ulysses": 2}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 4, "inner_ring": 2}),
        ("zb-h1", Pipeline(p=2, m=4), {"cp": 2, "zero": 1}),
        ("seq1f1b-zb", Pipeline(p=2, m=4, k=2), {"tp": 2, "recompute": Recompute.SELECTIVE}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "tp": 2, "sequence_parallel": True}),
        ("1f1b", Pipeline(p=4, m=4), {}),
        ("zb-v", Pipeline(p=4, m=8, v=2), {}),
        ("vocab-1", Pipeline(p=4, m=4), {}),
        ("interlaced", Pipeline(p=4, m=8), {}),
        ("v-half-vocab-1", Pipeline(p=4, m=8, v=2), {}),
        ("vocab-2", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True}),
        ("1f1b", Pipeline(p=1, m=2), {"dp": 4, "ep": 2, "zero": 1, "model": MIXTURE}),
        ("zb-h1", Pipeline(p=2, m=4), {"cp": 2, "ep": 2, "model": MIXTURE}),
        ("interleaved", Pipeline(p=2, m=4, v=2), {"dp": 2, "zero": 3, "offload_layers": 1}),
        ("1f1b", Pipeline(p=2, m=4), {"cp": 2, "offload_layers": 2, "recompute": Recompute.SELECTIVE}),
        ("zb-h1", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True, "ep": 2, "model": DEEPSEEK}),
        ("1f1b", Pipeline(p=2, m=4), {"dp": 2, "ep": 2, "zero": 2, "model": DEEPSEEK}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "tp": 2, "sequence_parallel": True, "ep": 4, "model": DEEPSEEK}),
    ],
}


def main() -> None:
    communicator = MPICommunicator(np)
    tokens = data(MODEL)
    plain = {
        model: run(Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64), tokens)
        for model in (MODEL, MIXTURE, DEEPSEEK)
    }
    for name, pipe, choices in TASKS[communicator.size]:
        bounds = tuple(range(0, 9, 8 // pipe.k))
        rows = SCHEDULES[name].order(pipe).rows()
        choices = {"model": MODEL} | choices
        expected = plain[choices["model"]]
        task = Task(rows=rows, micro_batches=pipe.m, bounds=bounds, dtype=np.float64, clip=1.0, **choices)
        worker = loud(Worker(communicator, task, SGD()))
        loss = worker.gradients(batch_of(task, worker.mesh.replica, tokens))
        worst = abs(loss - expected.loss) / expected.loss
        for key, value in worker.whole().items():
            exact = expected.gradients[key]
            worst = max(worst, np.abs(value - exact).max() / np.abs(exact).max())
        if worst > 1e-10:
            sys.exit(f"rank {communicator.rank}, {name} {pipe} {choices}: {worst}")
        communicator.barrier()
    if communicator.rank == 0:
        print(f"{len(TASKS[communicator.size])} tasks agree")


if __name__ == "__main__":
    main()
