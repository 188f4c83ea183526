"""The task that all ranks of a training run are given, and whether the trainer can run it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.errors import InputError, LayoutError
from planner.layouts import Recompute
from planner.models import Transformer
from planner.schedules.operations import Operation
from planner.trainer.executor import shares_ends
from planner.trainer.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training task, the same on every rank.

    rows: the schedule, one row of operations a pipeline rank; layers_per_stage: by default an even split.
    bounds: where sequence slices start, and the end; by default one slice. micro_batches: per replica and step.
    dp_replicate: copies of what `zero` shards over the data ranks. cp, ulysses, inner_ring, gathered_keys, zigzag: how
    tokens of a sequence lie on ranks, and how attention brings them together (`planner.trainer.context_parallel`). ep:
    neighbours among tensor and data ranks that share a layer's experts, each whole; picks: tensor ranks, which then
    have the same tokens, pick those of their experts (PPMoE); balance: weight of the loss that balances them.
    capacity_factor: copies of a rank's tokens that an expert takes, over the mean; 0 all. mtp_weight: of the mean loss
    of modules of multi-token prediction; 0.3 as DeepSeek-V3 began (arXiv 2412.19437, section 4.2).
    recompute_layers: of each stage, its first ones, that `recompute` is of; 0 all.
    dtype: of the layers' arithmetic; 16-bit ones keep parameters, gradients and optimizer state in 32 bits, and scale
    the loss. layer_at_a_time: of the schedule; sharded parameters are then gathered once for micro-batches in a row.
    offload_fraction: of the optimizer's state, kept and updated in host memory. offload_parameters: sharded ones wait
    there too, beside all of the state. offload_layers: of each stage, the first ones behind `recompute_layers`, but for
    its last, whose activations wait there; offload_modules: of all but its last, the modules whose own do.
    output_width: of a tower (`planner.trainer.towers`), which has no loss.
    """

    model: Transformer
    rows: Sequence[Sequence[Operation]]
    micro_batches: int
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ulysses: int = 1
    inner_ring: int = 1
    gathered_keys: bool = False
    ep: int = 1
    picks: bool = False
    balance: float = 0.01
    capacity_factor: float = 0.0
    mtp_weight: float = 0.3
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
    offload_parameters: bool = False
    offload_layers: int = 0
    offload_modules: tuple[str, ...] = ()
    output_width: int = 0

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return len(self.rows)

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.dp * self.cp * self.tp * self.pp

    def mesh(self, rank: int) -> Mesh:
        """A rank's place."""
        return Mesh(
            dp=self.dp * self.cp, tp=self.tp, pp=self.pp, rank=rank, cp=self.cp, ulysses=self.ulysses,
            dp_replicate=self.dp_replicate,
        )  # fmt: skip

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return 1 + max(op.stage for row in self.rows for op in row)


def check_model(m: Transformer, tower: bool = False) -> None:
    """Raises InputError if the model needs a kind of layer that the trainer has not."""
    missing = {
        "experts on latents": bool(m.moe_latent),
        "experts with biases": bool(m.expert_bias),
        "clamped gates": bool(m.clamped),
        "state-spaces": bool(m.num_ssm_layers),
        "attention or MLP alone": bool(m.num_mixer_only_layers or m.num_mlp_only_layers),
        "latent attention side by side with the MLP": bool(m.kv_lora_rank and m.parallel_block),
        "multi-token prediction by one module used again": bool(m.mtp_shared and m.num_mtp_layers > 1),
        "norms over query and key heads": m.qk_norm or m.qk_l2_norm,
        "attention to chunks": bool(m.chunk),
        "attention to later tokens": bool(m.bidirectional and not tower),
        "dense layers among those with experts": bool(m.expert_layers),
        "a norm after the embedding": m.embedding_norm,
    }
    if wanted := [name for name, needed in missing.items() if needed]:
        raise InputError(f"model {m.name} has {', '.join(wanted)}, which the trainer has no layers for")


def check_task(task: Task) -> None:
    """Raises InputError if a layer isn't written, LayoutError for the first of the trainer's rules that is broken."""
    check_model(task.model, task.output_width > 0)
    if task.recompute == Recompute.FINE:
        raise InputError("recompute is fine; allowed: none, selective, full: the trainer has no layers that it repeats")
    for rules in (_sizes, _states, _context, _experts):
        for broken, text in rules(task):
            if broken:
                raise LayoutError(text)


Rules = Iterator[tuple[Any, str]]
"""Whether a rule is broken, and what is then said; a rule may build on those before it."""


def _sizes(task: Task) -> Rules:
    tp, vocab, layers = task.tp, task.model.vocab, task.recompute_layers
    yield (
        layers < 0 or (layers and task.recompute == Recompute.NONE),
        f"recompute_layers is {layers}; allowed: 0, or more where layers are recomputed",
    )
    for name in ("num_kv_heads", "ffn", "shared_ffn", "vocab"):
        size = getattr(task.model, name)
        yield size % tp, f"tp is {tp}; the trainer needs one that divides {name} {size}"
    yield (
        shares_ends(task.rows) and vocab % (tp * task.pp),
        f"tp * pp is {tp * task.pp}; vocabulary parallelism needs one that divides vocab {vocab}",
    )
    yield (
        shares_ends(task.rows) and task.model.num_mtp_layers,
        f"num_mtp_layers is {task.model.num_mtp_layers}; allowed with vocabulary parallelism: 0",
    )


def _states(task: Task) -> Rules:
    layers, fraction, copies = task.offload_layers, task.offload_fraction, task.dp_replicate
    yield task.zero not in (0, 1, 2, 3), f"zero is {task.zero}; allowed: 0, 1, 2 or 3"
    yield layers < 0, f"offload_layers is {layers}; allowed: a whole number from 0"
    yield (
        bool(task.offload_modules) and (layers > 0 or task.recompute == Recompute.FULL),
        f"offload_modules is {'+'.join(task.offload_modules)}; the trainer needs offload_layers 0, recompute not full",
    )
    yield not 0.0 <= fraction <= 1.0, f"offload_fraction is {fraction}; allowed: a number from 0 to 1"
    yield (
        task.offload_parameters and (task.zero < 3 or fraction < 1.0),
        f"offload_parameters is on; the trainer needs zero 3, not {task.zero}, and offload_fraction 1, not {fraction}",
    )
    yield (
        copies < 1 or task.dp % copies or (copies > 1 and task.zero == 0),
        f"dp_replicate is {copies}; allowed: a divisor of dp {task.dp}, and 1 where zero is 0",
    )


def _context(task: Task) -> Rules:
    cp, ulysses, seq_len, heads = task.cp, task.ulysses, task.model.seq_len, task.model.num_kv_heads // task.tp
    yield (
        cp < 1 or seq_len % (2 * cp if task.zigzag and cp > 1 else cp),
        f"cp is {cp}; the trainer needs one of which twice divides the {seq_len} tokens of a sequence",
    )
    slices = len(task.bounds) - 1
    yield cp > 1 and slices > 1, f"cp is {cp} with {slices} sequence slices; allowed: one of the two"
    yield (
        ulysses < 1 or cp % ulysses or heads % ulysses,
        f"ulysses is {ulysses}; allowed: a divisor of cp {cp} and of the {heads} key-value heads of a tensor rank",
    )
    inner, ring = task.inner_ring, cp // ulysses
    yield (
        inner < 1 or (inner > 1 and (ring % inner or inner == ring or task.gathered_keys)),
        f"inner_ring is {inner}; allowed: 1, or a divisor of cp / ulysses {ring} below it where keys are not gathered",
    )


def _experts(task: Task) -> Rules:
    experts, ep, tp, ranks = task.model.num_experts, task.ep, task.tp, task.tp * task.cp * task.dp
    yield (
        ep < 1 or ranks % ep or max(experts, 1) % ep or ranks // ep % task.dp_replicate,
        f"ep is {ep}; allowed: a divisor of the {experts} experts and of tp * cp * dp {ranks}",
    )
    factor, slices = task.capacity_factor, len(task.bounds) - 1
    yield not 0.0 <= factor < math.inf, f"capacity_factor is {factor}; allowed: a number from 0"
    yield (
        task.picks and (ep != tp or task.sequence_parallel),
        f"ep is {ep} where tensor ranks pick tokens; allowed: tp {tp}, all tokens on each",
    )
    yield (
        experts and tp > 1 and not task.sequence_parallel and not task.picks,
        f"tp is {tp} with experts; the trainer then needs sequence parallelism, or ppmoe",
    )
    yield (experts and slices > 1, f"{slices} sequence slices with experts; the trainer balances whole sequences")
