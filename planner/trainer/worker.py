"""One rank of a training run: its share of the model, its row of the schedule, its optimizer.

Every rank makes its own from the same plan; nothing is shared but what the communicator carries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.errors import ExecutionError, InputError, LayoutError
from planner.layouts import Recompute
from planner.models import Transformer
from planner.schedules.operations import Operation
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
from planner.trainer.tensor_parallel import Region


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be run, the same on every rank.

    rows: the schedule, one row of operations a pipeline rank; layers_per_stage: by default an even split.
    bounds: where sequence slices start, and the end; by default one slice. micro_batches: per replica and step.
    dp_replicate: copies of what `zero` shards over the data ranks. cp, ulysses, gathered_keys, zigzag: how tokens of a
    sequence lie on ranks, and how attention brings them together (`planner.trainer.context_parallel`). ep: neighbours
    among tensor and data ranks that share a layer's experts, each whole; picks: tensor ranks, which then have the same
    tokens, pick those of their experts (PPMoE); balance: weight of the loss that balances
    them. capacity_factor: copies of a rank's tokens that an expert takes, over the mean; 0 all.
    recompute_layers: of each stage, its first ones, that `recompute` is of; 0 all.
    dtype: of the layers' arithmetic; 16-bit ones keep parameters, gradients and optimizer state in 32 bits, and scale
    the loss. layer_at_a_time: of the schedule; sharded parameters are then gathered once for micro-batches in a row.
    offload_fraction: of the optimizer's state, kept and updated in host memory. offload_layers: of each stage, its
    first ones but for its last, whose activations wait there.
    """

    model: Transformer
    rows: Sequence[Sequence[Operation]]
    micro_batches: int
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ulysses: int = 1
    gathered_keys: bool = False
    ep: int = 1
    picks: bool = False
    balance: float = 0.01
    capacity_factor: float = 0.0
    zigzag: bool = True
    zero: int = 0
    dp_replicate: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_layers: int = 0
    sequence_parallel: bool = False
    bounds: Sequence[int] = ()
    layers_per_stage: Sequence[int] = ()
    dtype: Any = np.float32
    seed: int = 0
    clip: float = 0.0
    layer_at_a_time: bool = False
    offload_fraction: float = 0.0
    offload_layers: int = 0

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return len(self.rows)

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return 1 + max(op.stage for row in self.rows for op in row)


def check_model(m: Transformer) -> None:
    """Raises InputError if the model needs a kind of layer that the trainer has not."""
    missing = {
        "shared experts": bool(m.num_shared_experts),
        "experts on latents": bool(m.moe_latent),
        "groups of experts": bool(m.expert_groups),
        "experts with biases": bool(m.expert_bias),
        "clamped gates": bool(m.clamped),
        "state-spaces": bool(m.num_ssm_layers),
        "attention or MLP alone": bool(m.num_mixer_only_layers or m.num_mlp_only_layers),
        "multi-head latent attention": bool(m.kv_lora_rank),
        "sliding windows": bool(m.num_window_layers),
        "multi-token prediction": bool(m.num_mtp_layers),
        "norms over query and key heads": m.qk_norm,
        "a norm after the embedding": m.embedding_norm,
    }
    if wanted := [name for name, needed in missing.items() if needed]:
        raise InputError(f"model {m.name} has {', '.join(wanted)}, which the trainer has no layers for")


def check_task(task: Task) -> None:
    """Raises InputError if a layer isn't written, LayoutError if tp doesn't divide a size."""
    check_model(task.model)
    if task.recompute == Recompute.FINE:
        raise InputError("recompute is fine; allowed: none, selective, full: the trainer has no layers that it repeats")
    if task.recompute_layers < 0 or (task.recompute_layers and task.recompute == Recompute.NONE):
        raise LayoutError(
            f"recompute_layers is {task.recompute_layers}; allowed: 0, or more where layers are recomputed"
        )
    for name in ("num_kv_heads", "ffn", "vocab"):
        size = getattr(task.model, name)
        if size % task.tp:
            raise LayoutError(f"tp is {task.tp}; the trainer needs one that divides {name} {size}")
    if shares_ends(task.rows) and task.model.vocab % (task.tp * task.pp):
        raise LayoutError(
            f"tp * pp is {task.tp * task.pp}; vocabulary parallelism needs one that divides vocab {task.model.vocab}"
        )
    if task.zero not in (0, 1, 2, 3):
        raise LayoutError(f"zero is {task.zero}; allowed: 0, 1, 2 or 3")
    if task.offload_layers < 0:
        raise LayoutError(f"offload_layers is {task.offload_layers}; allowed: a whole number from 0")
    if not 0.0 <= task.offload_fraction <= 1.0:
        raise LayoutError(f"offload_fraction is {task.offload_fraction}; allowed: a number from 0 to 1")
    copies = task.dp_replicate
    if copies < 1 or task.dp % copies or (copies > 1 and task.zero == 0):
        raise LayoutError(f"dp_replicate is {copies}; allowed: a divisor of dp {task.dp}, and 1 where zero is 0")
    _check_context(task)
    _check_experts(task)


def _check_context(task: Task) -> None:
    cp, ulysses, seq_len = task.cp, task.ulysses, task.model.seq_len
    if cp < 1 or seq_len % (2 * cp if task.zigzag and cp > 1 else cp):
        raise LayoutError(
            f"cp is {cp}; the trainer needs one of which twice divides the {seq_len} tokens of a sequence"
        )
    if cp > 1 and len(task.bounds) > 2:
        raise LayoutError(f"cp is {cp} with {len(task.bounds) - 1} sequence slices; allowed: one of the two")
    heads = task.model.num_kv_heads // task.tp
    if ulysses < 1 or cp % ulysses or heads % ulysses:
        raise LayoutError(
            f"ulysses is {ulysses}; allowed: a divisor of cp {cp} and of the {heads} key-value heads of a tensor rank"
        )


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


def _check_experts(task: Task) -> None:
    experts, ranks = task.model.num_experts, task.tp * task.cp * task.dp
    if task.ep < 1 or ranks % task.ep or max(experts, 1) % task.ep or ranks // task.ep % task.dp_replicate:
        raise LayoutError(f"ep is {task.ep}; allowed: a divisor of the {experts} experts and of tp * cp * dp {ranks}")
    if not 0.0 <= task.capacity_factor < math.inf:
        raise LayoutError(f"capacity_factor is {task.capacity_factor}; allowed: a number from 0")
    if task.picks and (task.ep != task.tp or task.sequence_parallel):
        raise LayoutError(f"ep is {task.ep} where tensor ranks pick tokens; allowed: tp {task.tp}, all tokens on each")
    if experts and task.tp > 1 and not task.sequence_parallel and not task.picks:
        raise LayoutError(f"tp is {task.tp} with experts; the trainer then needs sequence parallelism, or ppmoe")
    if experts and len(task.bounds) > 2:
        raise LayoutError(f"{len(task.bounds) - 1} sequence slices with experts; the trainer balances whole sequences")


def _setting(communicator: Communicator, task: Task, mesh: Mesh) -> Setting:
    """What all layers of a rank share."""
    region = Region(
        communicator=communicator, group=mesh.tensor, index=mesh.t, sequence_parallel=task.sequence_parallel
    )
    return Setting(
        xp=communicator.xp, dtype=task.dtype, model=task.model, region=region, recompute=task.recompute,
        context=Context(
            xp=communicator.xp, communicator=communicator, neighbours=mesh.neighbours, ring=mesh.ring,
            member=mesh.c % task.ulysses, place=mesh.c // task.ulysses, gathered=task.gathered_keys,
            zigzag=task.zigzag,
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
        self.mesh = Mesh(
            dp=task.dp * task.cp, tp=task.tp, pp=task.pp, rank=communicator.rank, cp=task.cp, ulysses=task.ulysses,
            dp_replicate=task.dp_replicate,
        )  # fmt: skip
        self.setting = _setting(communicator, task, self.mesh)
        stages = make_stages(
            self.setting,
            task.layers_per_stage or split_evenly(task.model.num_layers, task.num_stages),
            task.recompute_layers,
            task.offload_layers,
            shares_ends(task.rows),
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
            communicator, {name: len(self.store.owned(name)[0]) for name in units}, task.offload_fraction
        )

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
