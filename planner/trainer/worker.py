"""One rank of a training run: its share of the model, its row of the schedule, its optimizer.

Every rank makes its own from the same plan; nothing is shared but what the communicator carries.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.base.errors import ExecutionError, LayoutError
from planner.trainer.arrays import Array, on_host
from planner.trainer.communicator import Communicator, RankGroup
from planner.trainer.context_parallel import Context
from planner.trainer.executor import Batch, Executor, shares_ends
from planner.trainer.experts import ExpertRanks
from planner.trainer.host_arena import HostStates
from planner.trainer.layer import Setting
from planner.trainer.mesh import Mesh
from planner.trainer.optimizers import LossScale, Optimizer
from planner.trainer.parameters import Unit
from planner.trainer.shared_ends import shared_units
from planner.trainer.stage import Stage, make_stages, split_evenly
from planner.trainer.store import Store
from planner.trainer.task import Task, check_task
from planner.trainer.tensor_parallel import Region


def _units_here(task: Task, mesh: Mesh, stages: Sequence[Stage]) -> tuple[dict[str, Unit], dict[str, RankGroup]]:
    """Parameters of the stages in this rank's row, and for each the pipeline ranks that hold it too.

    Several do where embedding and head are tied, and where two replicas of the model meet on the pipeline.
    """
    held = [{u.name: u for s in sorted({op.stage for op in row}) for u in stages[s].units} for row in task.rows]
    here = held[mesh.p]
    holders = {name: mesh.holders(tuple(p for p, units in enumerate(held) if name in units)) for name in here}
    if shares_ends(task.rows):
        tables = shared_units(task.model)
        here |= {unit.name: unit for unit in tables}
        holders |= {unit.name: mesh.holders((mesh.p,)) for unit in tables}
    return here, holders


def setting_of(communicator: Communicator, task: Task, mesh: Mesh) -> Setting:
    """The setting of a rank's layers."""
    region = Region(
        communicator=communicator, group=mesh.tensor, index=mesh.t, sequence_parallel=task.sequence_parallel
    )
    return Setting(
        xp=communicator.xp, dtype=task.dtype, model=task.model, region=region, recompute=task.recompute,
        mtp_weight=task.mtp_weight,
        context=Context(
            xp=communicator.xp, communicator=communicator, neighbours=mesh.neighbours, ring=mesh.ring,
            member=mesh.c % task.ulysses, place=mesh.c // task.ulysses, inner=task.inner_ring,
            gathered=task.gathered_keys, zigzag=task.zigzag, causal=not task.model.bidirectional,
        ),
        experts=ExpertRanks(
            xp=communicator.xp, communicator=communicator,
            group=RankGroup("ep", mesh.expert_mesh(task.ep).tensor.ranks),
            sequence=mesh.sequence, balance=task.balance, capacity_factor=task.capacity_factor,
            picks=task.picks,
        ),
    )  # fmt: skip


class Worker:
    """One rank, ready to step."""

    def __init__(self, communicator: Communicator, task: Task, optimizer: Optimizer) -> None:
        check_task(task)
        if communicator.size != task.num_ranks:
            raise LayoutError(f"the plan needs {task.num_ranks} ranks; {communicator.size} were started")
        self.communicator, self.task, self.optimizer = communicator, task, optimizer
        self.mesh = task.mesh(communicator.rank)
        self.setting = setting_of(communicator, task, self.mesh)
        stages = make_stages(
            self.setting,
            task.layers_per_stage or split_evenly(task.model.num_layers, task.num_stages),
            task.recompute_layers,
            task.offload_layers,
            shares_ends(task.rows),
            task.offload_modules,
            task.output_width,
        )
        units, holders = _units_here(task, self.mesh, stages)
        self.store = Store(
            communicator=communicator,
            mesh=self.mesh,
            units=units.values(),
            holders=holders,
            zero=task.zero,
            dtype=np.promote_types(task.dtype, np.float32),
            compute=task.dtype,
            seed=task.seed,
            sequence_parallel=self.setting.region.split_tokens,
            ep=task.ep,
            on_host=task.offload_parameters,
        )
        self.executor = Executor(
            communicator=communicator,
            mesh=self.mesh,
            setting=self.setting,
            stages=stages,
            store=self.store,
            rows=task.rows,
            bounds=task.bounds or (0, task.model.seq_len),
            layer_at_a_time=task.layer_at_a_time,
        )
        self.steps = 0
        self.scale = LossScale() if np.dtype(task.dtype).itemsize < 4 else None
        self._weights = {name: self.store.weights(name) for name in units}
        self._decays = {name: self.store.decays(name) for name in units}
        self.host = HostStates(
            communicator, {name: len(self.store.owned(name)[0]) for name in units}, task.offload_fraction,
            task.offload_parameters,
        )  # fmt: skip

    def gradients(self, batch: Batch) -> float:
        """Forward and backward passes of one step, gradients complete in the store; the mean loss, on every rank."""
        self.store.clear_gradients()
        self.executor.loss_scale = self.scale.value if self.scale else 1.0
        loss = sum(self.executor.run(batch).values())
        self.store.reduce_gradients()
        if self.scale:
            for name in self._weights:
                self.store.owned(name)[1][...] *= 1.0 / self.scale.value
        return float(self.over_replicas([loss])[0])

    def over_replicas(self, values: Any) -> Any:
        """Numbers that stages of all replicas hold parts of, summed, on every rank and on the host."""
        column = RankGroup("loss", tuple(r for r in range(self.mesh.num_ranks) if r % self.mesh.tp == self.mesh.t))
        return on_host(self.communicator.all_reduce(self.communicator.xp.asarray(values, dtype="float64"), column))

    def gradient_norm(self) -> float:
        """Euclidean norm of the whole gradient, every element counted once."""
        square = sum(float((self._weights[n] * g * g).sum()) for n in self._weights for g in [self.store.owned(n)[1]])
        total = self.communicator.all_reduce(self.communicator.xp.asarray([square]), self.mesh.world)
        return math.sqrt(float(total[0]))

    def step(self, batch: Batch) -> float:
        """One optimizer step; returns the mean loss before it.

        Raises ExecutionError if the loss or the gradient is not a number; parameters are as they were.
        """
        loss = self.gradients(batch)
        norm = self.gradient_norm() if self.task.clip or self.scale else 0.0
        if self.scale and np.isfinite(loss):
            self.scale.judge(bool(np.isfinite(norm)))
            if not np.isfinite(norm):  # overflow: the step is left out
                self.steps += 1
                return loss
        if not np.isfinite(loss + norm):
            raise ExecutionError(
                f"the loss is {loss} and the gradient's norm {norm} in step {self.steps + 1}; "
                f"try a lower learning rate than {self.optimizer.learning_rate}"
            )
        self.steps += 1
        self.apply(self.steps, min(1.0, self.task.clip / norm) if self.task.clip and norm else 1.0)
        self.store.publish()
        return loss

    def apply(self, step: int, shrink: float = 1.0) -> None:
        """The optimizer's change to what this rank owns, gradients shrunk by a factor; step counts from 1."""
        for name, decays in self._decays.items():
            w, g = self.store.owned(name)
            g = g * shrink if shrink < 1.0 else g
            if name in self.host.units:
                self.host.update(self.optimizer, name, w, g, decays, step)
            else:
                self.optimizer.update(self.communicator.xp, name, w, g, decays, step)

    def whole(self, which: str = "gradients") -> dict[str, Array]:
        """The gradients (or `parameters`) of this rank's units as the model's own tensors, on the host."""
        out: dict[str, Array] = {}
        for name in self.store.units:
            parameters, gradients = self.store.owned(name)
            owned = gradients if which == "gradients" else parameters
            out |= {f"{name}.{k}": on_host(v) for k, v in self.store.whole(name, owned).items()}
        return out
