"""A mixture of experts on one rank: routing, tokens to their experts and back, gradients.

No copy of a token is dropped, or with a capacity factor those beyond what an expert takes of a rank's micro-batch, the
least probable first; their outputs count as zero (Megatron-Core, --moe-expert-capacity-factor).

A token goes to the top k experts (`planner.trainer.router`); their outputs are added with its weights. Shared experts
are an MLP beside them, cut over tensor ranks (DeepSeekMoE: Dai et al. 2024, arXiv 2401.06066). A rank holds whole
experts, E / ep of them. Copies of tokens are sorted by expert and go to the ranks that hold these, as many as there
are: the parts differ in size.

The balance loss is that of each sequence on its own, so it does not depend on how a batch is cut (DeepSeek-AI 2024,
arXiv 2412.19437, equations 17 to 20). It adds to gradients, not to the loss that is reported.

Shapes: n tokens of this rank, k experts a token, c copies of tokens sorted by expert, n k or those kept, E experts,
h hidden, f inner size; lists have an array for each expert of this rank.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.models import Transformer
from planner.trainer.arrays import Array, on_host, wide
from planner.trainer.block import Block
from planner.trainer.communicator import Communicator, RankGroup
from planner.trainer.functions import activated, activated_gradient
from planner.trainer.layer import Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Unit, Views
from planner.trainer.router import routed, router_gradient

TOKEN_TAG = 4


def experts_unit(model: Transformer, index: int, small: float) -> Unit:
    """The experts of layer `index`; ranks that share experts split them along their first axis."""
    E, h, f = model.num_experts, model.hidden, model.moe_ffn
    up = (E, h, 2, f) if model.gated else (E, h, f)
    parameters = (
        Parameter(name="experts.up", shape=up, tp_axis=0),
        Parameter(name="experts.down", shape=(E, f, h), tp_axis=0, std=small),
    )
    return Unit(f"experts{index}", parameters, experts=True)


@dataclass(frozen=True, kw_only=True)
class ExpertRanks:
    """The ranks that share a layer's experts, in order, and those that share a sequence's tokens.

    picks: those of the group have the same tokens; each picks the copies for its experts, and their outputs are summed
    (PPMoE: Chen et al. 2023, arXiv 2304.11414).
    """

    xp: Any
    communicator: Communicator
    group: RankGroup
    sequence: RankGroup
    balance: float
    capacity_factor: float = 0.0
    picks: bool = False

    def sum(self, x: Array) -> Array:
        """The sum over the ranks that pick tokens; x itself on others."""
        return self.communicator.all_reduce(x, self.group) if self.picks else x

    def counts_from_all(self, counts_E: Array) -> Any:
        """Copies of tokens that every rank has for each expert of this one, on the host, shape (ep, E / ep)."""
        ranks = len(self.group)
        came = self.communicator.all_to_all(self.xp.asarray(counts_E), self.group, 0, 0)
        return on_host(came).reshape(ranks, -1)

    def exchange(self, parts: list[Array], coming: Any) -> list[Array]:
        """A part to every rank of the group; from each the rows that come, `coming` of them."""
        me, ranks = self.communicator.rank, self.group.ranks
        for rank, part in zip(ranks, parts, strict=True):
            if rank != me:
                self.communicator.send(part, rank, TOKEN_TAG, "ep")
        width, dtype = parts[0].shape[1], parts[0].dtype
        return [
            part if rank == me else self.communicator.recv(rank, TOKEN_TAG, (int(n), width), dtype)
            for rank, part, n in zip(ranks, parts, coming, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class TokenRoutes:
    """The places that copies of tokens go to.

    sent: copies to each rank's experts, shape (ep, E / ep); came: from each rank to the experts here.
    """

    ranks: ExpertRanks
    order_c: Array
    sent: Any
    came: Any

    def to_experts(self, x_ch: Array) -> list[Array]:
        """Sorted copies, to the experts of this rank."""
        there = _cut(x_ch, self.sent.sum(axis=1))
        here = self.ranks.exchange(there, self.came.sum(axis=1))
        by_source = [_cut(x, counts) for x, counts in zip(here, self.came, strict=True)]
        return [self.ranks.xp.concatenate(parts) for parts in zip(*by_source, strict=True)]

    def from_experts(self, outputs: list[Array]) -> Array:
        """The experts' outputs, brought back to the sorted order, shape (c, h)."""
        by_expert = [_cut(x, counts) for x, counts in zip(outputs, self.came.T, strict=True)]
        back = [self.ranks.xp.concatenate(parts) for parts in zip(*by_expert, strict=True)]
        return self.ranks.xp.concatenate(self.ranks.exchange(back, self.sent.sum(axis=1)))


@dataclass(frozen=True, kw_only=True)
class PickedRoutes:
    """Copies of tokens that this rank's experts pick. counts: of each expert."""

    ranks: ExpertRanks
    order_c: Array
    counts: Any

    def to_experts(self, x_ch: Array) -> list[Array]:
        """Sorted copies, by expert."""
        return _cut(x_ch, self.counts)

    def from_experts(self, outputs: list[Array]) -> Array:
        """The experts' outputs in the sorted order, shape (c, h)."""
        return self.ranks.xp.concatenate(outputs)


def routes(ranks: ExpertRanks, order_c: Array, counts_E: Array) -> TokenRoutes | PickedRoutes:
    """The places of copies that are sorted by expert, `counts_E` to each."""
    sent = on_host(counts_E).reshape(len(ranks.group), -1)
    if not ranks.picks:
        return TokenRoutes(ranks=ranks, order_c=order_c, sent=sent, came=ranks.counts_from_all(sent.ravel()))
    me = ranks.group.ranks.index(ranks.communicator.rank)
    return PickedRoutes(ranks=ranks, order_c=_cut(order_c, sent.sum(axis=1))[me], counts=sent[me])


def _cut(x: Array, counts: Any) -> list[Array]:
    """Consecutive rows, so many each."""
    ends = np.cumsum(counts)
    return [x[int(end - n) : int(end)] for end, n in zip(ends, counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class SavedExperts:
    """Arrays that the pass through the experts keeps for its backward pass.

    scores: the router's, shape (n, E); load: each expert's share of a sequence's tokens, 1 at balance, (b, E); shared:
    the first product of the shared experts.
    """

    routing: TokenRoutes | PickedRoutes
    chosen_nk: Array
    scores: Array
    gates_nk: Array
    load: Array
    inputs: list[Array]
    ups: list[Array]
    outputs_nkh: Array
    shared: Array = None


@dataclass(frozen=True)
class ExpertProducts:
    """Gradients of the weights of one product of each expert here."""

    name: str
    inputs: list[Array]
    gradients: list[Array]

    def add_to(self, gradients: Views) -> None:
        """Add them."""
        for weights, x, dy in zip(gradients[self.name], self.inputs, self.gradients, strict=True):
            weights += (x.T @ dy).reshape(weights.shape)


def experts_forward(ranks: ExpertRanks, m: Transformer, p: Views, x_bsh: Array) -> tuple[Array, SavedExperts]:
    """The experts' weighted outputs, shape (b, s, h)."""
    xp, k, E = ranks.xp, m.top_k, m.num_experts
    b, s, h = x_bsh.shape
    x_nh = x_bsh.reshape(-1, h)
    scores, chosen, gates = routed(xp, m, wide(x_nh @ p["router"]))
    counts_bE = (chosen.reshape(b, s * k, 1) == xp.arange(E)).sum(axis=1)
    counts_E = counts_bE.sum(axis=0)
    order = xp.argsort(chosen.ravel(), kind="stable")
    if ranks.capacity_factor:
        capacity = math.ceil(ranks.capacity_factor * b * s * k / E)
        order = _within(xp, capacity, chosen.ravel(), gates.ravel(), counts_E)
        counts_E = xp.minimum(counts_E, capacity)
    routing = routes(ranks, order, counts_E)
    inputs = routing.to_experts(x_nh[routing.order_c // k])
    ups = [x @ w.reshape(len(w), -1) for x, w in zip(inputs, p["experts.up"], strict=True)]
    outputs = [activated(xp, m.gated, up) @ w for up, w in zip(ups, p["experts.down"], strict=True)]
    outputs_nkh = _of_tokens(routing, outputs, chosen)
    y_nh = ranks.sum((outputs_nkh * gates[..., None]).sum(axis=1).astype(x_bsh.dtype, copy=False))
    whole = ranks.communicator.all_reduce(counts_bE.astype(gates.dtype), ranks.sequence)
    saved = SavedExperts(
        routing=routing, chosen_nk=chosen, scores=scores, gates_nk=gates,
        load=whole * (E / whole.sum(axis=-1, keepdims=True)), inputs=inputs, ups=ups, outputs_nkh=outputs_nkh,
    )  # fmt: skip
    return y_nh.reshape(b, s, h), saved


def experts_gradient(
    ranks: ExpertRanks, m: Transformer, p: Views, x_bsh: Array, dy_bsh: Array, saved: SavedExperts, part: SliceOf
) -> tuple[Array, list[Any]]:
    """The gradient by the experts' input, shape (b, s, h), and the weight gradients that wait."""
    xp, order, k = ranks.xp, saved.routing.order_c, m.top_k
    b, s, h = x_bsh.shape
    dy_nh = dy_bsh.reshape(-1, h)
    gates_c1 = saved.gates_nk.reshape(-1, 1)[order]
    douts = saved.routing.to_experts((dy_nh[order // k] * gates_c1).astype(dy_nh.dtype, copy=False))
    dups = [
        activated_gradient(xp, m.gated, dout @ w.T, up)
        for dout, up, w in zip(douts, saved.ups, p["experts.down"], strict=True)
    ]
    dinputs = [dup @ w.reshape(len(w), -1).T for dup, w in zip(dups, p["experts.up"], strict=True)]
    dx_nh = ranks.sum(_of_tokens(saved.routing, dinputs, saved.chosen_nk).sum(axis=1))
    dgates_nk = ranks.sum((wide(saved.outputs_nkh) * wide(dy_nh)[:, None]).sum(axis=-1))
    balance = ranks.balance * part.loss_weight * part.loss_scale * saved.load
    dlogits = router_gradient(xp, m, saved.scores, saved.chosen_nk, saved.gates_nk, dgates_nk, balance)
    dlogits = dlogits.astype(dy_nh.dtype, copy=False)
    inner = [activated(xp, m.gated, up) for up in saved.ups]
    waiting: list[Any] = [
        ExpertProducts("experts.down", inner, douts),
        ExpertProducts("experts.up", saved.inputs, dups),
        Product("router", x_bsh, dlogits.reshape(b, s, -1)),
    ]
    return (dx_nh + dlogits @ p["router"].T).reshape(b, s, h), waiting


def _within(xp: Any, capacity: int, expert: Array, gate: Array, counts_E: Array) -> Array:
    """Copies sorted by expert, of each the most probable ones that it has room for, shape (c,)."""
    order = xp.argsort(-gate, kind="stable")
    order = order[xp.argsort(expert[order], kind="stable")]
    place = xp.arange(len(order)) - (xp.cumsum(counts_E) - counts_E)[expert[order]]
    return order[place < capacity]


def _of_tokens(routing: TokenRoutes | PickedRoutes, outputs: list[Array], chosen_nk: Array) -> Array:
    """The experts' outputs for each token's copies, shape (n, k, h); zeros for those that were dropped."""
    x_ch = routing.from_experts(outputs)
    out = routing.ranks.xp.zeros((chosen_nk.size, x_ch.shape[1]), dtype=x_ch.dtype)
    out[routing.order_c] = x_ch
    return out.reshape(*chosen_nk.shape, x_ch.shape[1])


class SparseBlock(Block):
    """Layer `index` of the model. Under sequence parallelism each tensor rank routes its own tokens."""

    def __init__(self, setting: Setting, index: int) -> None:
        super().__init__(setting, index)
        small = 0.02 / math.sqrt(2 * setting.model.num_layers)
        self.units = (*self.units, experts_unit(setting.model, index, small))

    def _mlp(self, p: Views, x_bsh: Array, with_output: bool) -> tuple[Array, Any]:
        """See `Block`. A recomputed pass needs the outputs too: the gates' gradients are taken of them."""
        y_bsh, saved = experts_forward(self.setting.experts, self.setting.model, p, x_bsh)
        if "up" not in p:
            return y_bsh, saved
        shared_bsh, up = super()._mlp(p, x_bsh, with_output)
        return y_bsh + shared_bsh if with_output else None, replace(saved, shared=up)

    def _mlp_input_gradient(
        self, p: Views, x_bsh: Array, dy_bsh: Array, saved: Any, part: SliceOf
    ) -> tuple[Array, list[Any]]:
        dx_bsh, waiting = experts_gradient(self.setting.experts, self.setting.model, p, x_bsh, dy_bsh, saved, part)
        if saved.shared is None:
            return dx_bsh, waiting
        more_bsh, more = super()._mlp_input_gradient(p, x_bsh, dy_bsh, saved.shared, part)
        return dx_bsh + more_bsh, waiting + more
