"""The router's own kernels, and the copies of tokens sorted by expert and back. Array-first, shape (n,)."""

from math import comb
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints, record
from planner.choices.enumerations import Number
from planner.costs.case import Case
from planner.costs.kernels.device import matmul_s, slowest_of, stream_s
from planner.costs.placement import members_in_node, node_ranks
from planner.hardware import Cluster
from planner.layouts import Dispatcher, Layouts, Precision, Recompute
from planner.models import Transformer, mix

FLEX, LARGEST_SERVER = ("ampere", "hopper", "blackwell", "blackwell-ultra"), 8
"""GPUs and servers on which the flex dispatcher runs (Megatron-Bridge, training/flex_dispatcher_backend.py)."""
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes of a group, ep * etp, that DeepEP has settings for (deep_ep/buffer.py, get_dispatch_config)."""
FLEX_BY_DEFAULT = ("hopper", "blackwell", "blackwell-ultra")
"""GPUs on which most public recipes of mixtures use it (the profile's source of flex_dispatch counts them)."""
MOST_RDMA_TOKENS = 21_845  # 3 * 21,845 + 1 is 65,536
"""A token takes three entries of a queue pair, and InfiniBand has 65,535 (Megatron-LM pull request 4094)."""


class Routing(Number):
    """How a framework brings tokens to their experts and back.

    EAGER: operation by operation, copies in an all-to-all. FUSED: the same with a kernel or two for the router, its
    loss and each permutation. NODES: a dispatch of its own sends a token once to a node, copies are made on arrival.
    """

    EAGER = 0
    FUSED = 1
    NODES = 2


@record
class PassTraffic:
    """Traffic and launches of a pass through a layer with experts: how often an element is read or written.

    token: of the hidden state, or the latent that experts take; copy: of a token's copies on the rank that sends them;
    sorted: of those that have arrived at experts, if a rank has several; arrived: of those in any case. added: of the
    copies, those that are added to their tokens one number at a time (`ADDS_PER_UNIT_S`).
    """

    token: float = 0.0
    copy: float = 0.0
    added: float = 0.0
    sorted: float = 0.0
    arrived: float = 0.0
    kernels: float


ADDS_PER_UNIT_S = 0.42e9
"""Numbers per second that a compute unit adds one by one in PyTorch's scatter_add and index_add before 2026-05.

scatter_add of 67 million 16-bit numbers takes 2.07 ms on H20's 78 units (flagos-ai/FlagGems pull request 4502). Others:
index_add on A100 0.28e9 (pull request 427), on B200 0.32e9 with half of them to one row (pytorch pull request 183950).
"""

EXPERT_SPREAD = 0.45
"""Standard deviation over the mean of what a layer's experts take of tokens, where a trained router is left to itself.

The middle of eight measured ones: 0.19 to 0.45 and more of five models on plain text (arXiv 2605.20982: Gini's figure
0.105, 0.150, one between, twice above 0.24; loads are log-normal, deepseek-ai/DeepEP pull request 393), 1.36 of
DeepSeek-R1 (NVIDIA/TensorRT-LLM, examples/wide_ep/ep_load_balancer: 0.48 of ranks with eight experts), 1.4 and 1.9 of
Qwen3-30B on some thousand tokens (mcp-tool-shop-org/gpu-container, routing de-risk: entropy 0.11 and 0.15 below even).
"""

# Counted in Megatron-Core's router.py, moe_utils.py and token_dispatcher.py and Transformer Engine's permutation.py
# (r: read, w: written).
FORWARD = {
    # Copies r w; those arrived sorted r w and back r w; weighed r w, added r r w to zeros w.
    # Kernels: logits to a map of experts 15, the loss that balances them 17, counts of tokens 12, copies 9, back 11.
    Routing.EAGER: PassTraffic(token=1, copy=4, added=1, sorted=4, kernels=64),
    # Copies r w; those arrived as above; weighed and added r, w. Kernels: 3, 4, 12, 4, 2.
    Routing.FUSED: PassTraffic(token=1, copy=3, sorted=4, kernels=25),
    # Copies r w, added r w. Kernels: router and loss 7, handles of the dispatch 4, copies 4, back 2.
    Routing.NODES: PassTraffic(arrived=4, kernels=17),
}
BACKWARD = {
    # Gradients of copies r w, of weighing's factors r w and r r w r; those at experts as forward; added r r w to zeros.
    Routing.EAGER: PassTraffic(token=1, copy=8, added=1, sorted=4, kernels=27),
    # Gradients of copies r w and of weights r; as forward; added r, w.
    Routing.FUSED: PassTraffic(token=1, copy=4, sorted=4, kernels=15),
    Routing.NODES: PassTraffic(arrived=4, kernels=12),
}


# Transformer Engine's fp8 products take rows in multiples of 16 to 128: what arrived is padded, r w, and cut again,
# r w, in either direction (Megatron-Core, experts.py: quantization_padding). HybridEP pads as it copies, DeepEP not.
PADDED, PADDINGS = 4.0, 3.0
ADDED = 3.0  # passes of a kernel that adds whole rows: r r w


def own_imbalance(model: Transformer, ep: Any) -> Array:
    """Tokens of the busiest of ep ranks over the mean, as expected of a router that nothing forces to be even.

    A rank's load is the mean of its experts', log-normal as theirs are; the busiest is the largest of ep draws, whose
    logarithm lies z deviations off, and varies by 1 / (1 + z^2) of one draw's (within 0.06 up to 64 draws). ep, and the
    model's fields: numbers or (n,); returns shape (n,).
    """
    variance = np.log1p(EXPERT_SPREAD**2 * ep / np.maximum(model.num_experts, 1))
    z = slowest_of(ep)
    return np.asarray(np.exp(np.sqrt(variance) * z - 0.5 * variance * z**2 / (1.0 + z**2)))


def permute_s(case: Case, how: Routing) -> tuple[Array, Array]:
    """Forward and backward seconds of the average layer's routing but the router's product, for one pass.

    With sequence parallelism a tensor rank routes its part of the tokens, and copies for experts that are cut over the
    tensor group are gathered there before they are sorted (Megatron-Core, MoEAlltoAllTokenDispatcher). Where tokens are
    gathered first, a rank picks copies among the tokens of all (MoEDroplessTokenDispatcher of 2024-03), and picks and
    sorts by torch.gather, of which each adds its gradients. No token is dropped; how many meet an expert differs, so
    that fp8 products' rows are padded.
    """
    device, layouts = case.device, case.layouts
    sparse = mix.shares(case.model).sparse
    tokens = sparse * case.pass_tokens * mix.expert_width(case.model) / case.token_shares
    cut, gathered = np.where(layouts.sequence_parallel, layouts.etp, 1), case.framework.gathered_tokens
    copies = tokens * case.model.top_k / case.pickers * np.where(gathered, cut, 1)
    at_experts = tokens * case.busiest_copies / case.pickers * cut
    several = case.local_experts > 1
    added = float(case.framework.single_adds)
    pads = (how != Routing.NODES) | (dispatchers(case) == Dispatcher.DEEPEP)
    padded = np.where((device.matrix_bytes < device.element_bytes) & pads, 1.0, 0.0)

    def seconds(of: PassTraffic, more_adds: float = 0.0) -> Array:
        there = (of.sorted * several + of.arrived + PADDED * padded) * at_experts
        adds = of.added + more_adds
        elements = of.token * tokens + (of.copy + (1.0 - added) * ADDED * adds) * copies + there
        e = device.accelerator.efficiency
        moved = elements * device.element_bytes * (e.memory_fraction / e.permute_fraction)
        streamed_s = stream_s(device, moved, sparse * (of.kernels + PADDINGS * padded))
        adding_s = added * adds * copies / (ADDS_PER_UNIT_S * device.accelerator.num_compute_units)
        return np.asarray(streamed_s + adding_s)

    return seconds(FORWARD[how]), seconds(BACKWARD[how], float(gathered))


def crowds_queues(cluster: Cluster, model: Transformer, x: Layouts) -> Bools:
    """Whether HybridEP's ranks send more tokens between NVLink domains than InfiniBand's queues have entries for."""
    tokens = x.micro_batch * np.asarray(model.seq_len) / (x.cp * np.where(x.sequence_parallel, x.tp, 1))
    many = np.asarray(tokens >= MOST_RDMA_TOKENS)
    return many & (x.ep > members_in_node(node_ranks(cluster, x.gpus), x.ep, x.etp)) if np.any(many) else many


def lacks_deepep_settings(x: Layouts) -> Bools:
    """Where a group of several ranks has a size that DeepEP stops at."""
    size = x.ep * x.etp
    return np.asarray((size > 1) & ~np.equal.outer(DEEPEP_RANKS, size).any(axis=0))


def dispatchers(case: Case) -> Ints:
    """Each layout's dispatcher: the named one, else the framework's, none of them FRAMEWORK.

    A framework with the flex dispatcher takes it on Hopper and Blackwell, where ranks exchange tokens at all: DeepEP on
    servers, HybridEP in racks of one NVLink domain. It stays a plain all-to-all where HybridEP's queues are too short,
    DeepEP has no settings for the group, GPUs can't start sends over the network, or tokens are dropped.
    """
    x, framework, server = case.layouts, case.framework, case.cluster.gpus_per_node <= LARGEST_SERVER
    usual = Dispatcher.DEEPEP if server else Dispatcher.HYBRIDEP
    unset = server & lacks_deepep_settings(x)
    own: Any = np.where(unset, Dispatcher.ALLTOALL, usual) if framework.node_dispatch else Dispatcher.ALLTOALL
    gpu, network = case.cluster.accelerator.efficiency.name, case.cluster.network
    if framework.flex_dispatch and network.device_sends and gpu in FLEX_BY_DEFAULT:
        crowded = False if server else crowds_queues(case.cluster, case.model, x)
        own = np.where((x.ep > 1) & (x.capacity_factor == 0.0) & ~np.asarray(crowded) & ~unset, usual, own)
    return np.asarray(np.where(x.dispatcher == Dispatcher.FRAMEWORK, own, x.dispatcher))


def by_node(case: Case) -> Bools:
    """Whether a token is sent once to each rank and node of its experts."""
    return dispatchers(case) > Dispatcher.ALLTOALL


def takes_turns(case: Case) -> Bools:
    """Whether a micro-batch's experts' all-to-alls run beside another's passes, where the framework interleaves two.

    Megatron-Core does with expert ranks, without a pipeline or with virtual stages. It refuses layers recomputed whole,
    weights in 32 bits, more than one module of multi-token prediction and one without a pipeline
    (transformer_config.py; NVIDIA-NeMo/Megatron-Bridge, training/comm_overlap.py, says so too).
    """
    if case.framework.overlap_experts == 0.0:
        return np.zeros(1, dtype=bool)
    x = case.layouts
    split = (x.ep > 1) & ((x.pp == 1) | (x.virtual_stages > 1))
    whole = (x.recompute == Recompute.FULL) | (x.precision < Precision.FP16)
    return np.asarray(split & ~whole & (np.asarray(case.model.num_mtp_layers) <= (x.pp > 1)))


def routed_s(case: Case) -> tuple[Array, Array]:
    """`permute_s` as each layout's dispatcher routes, or `masks_s`."""
    there, back = _sorted_s(case)
    if not np.any(case.masked):
        return there, back
    masks, masks_back = masks_s(case)
    return np.where(case.masked, masks, there), np.where(case.masked, masks_back, back)


def masks_s(case: Case) -> tuple[Array, Array]:
    """Forward and backward seconds of the products with masks that bring tokens to the experts' places and back.

    A sequence of s tokens has s top_k capacity places, and a mask of s times as many numbers. Forward one product fills
    the places and one adds what experts make of them; backward one each, and the second mask's own gradient (Lepikhin
    et al. 2020, arXiv 2006.16668, algorithm 1 and appendix; AI-Hypercomputer/maxtext, layers/moe.py, dense_matmul).
    """
    model, s = case.model, np.asarray(case.model.seq_len) / case.layouts.cp
    places = np.where(case.masked, s * model.top_k * case.layouts.capacity_factor, 1.0)
    sequences = mix.shares(model).sparse * case.pass_tokens / s
    width = mix.expert_width(model)
    shapes = ((places, width, s), (s, width, places), (s, places, width))
    filled, added, mask = (sequences * matmul_s(case.device, *shape) for shape in shapes)
    return np.asarray(filled + added), np.asarray(filled + added + mask)


def _sorted_s(case: Case) -> tuple[Array, Array]:
    """`permute_s` as each layout's dispatcher routes."""
    node, plain = by_node(case), Routing.FUSED if case.framework.fused_routing else Routing.EAGER
    if not np.any(node):
        return permute_s(case, plain)
    there, back = permute_s(case, Routing.NODES)
    if np.all(node):
        return there, back
    forward, backward = permute_s(case, plain)
    return np.where(node, there, forward), np.where(node, back, backward)


def reached(model: Transformer, units: Any) -> Array:
    """Expected number of the `units` (ranks or nodes) that hold at least one of a token's top_k experts.

    Units share the experts evenly, and any expert is as likely as another: a unit is missed with probability
    (1 - 1/units)^top_k. Where routing is limited to some groups of experts, first groups are drawn, then experts among
    theirs (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2: node-limited routing). units, and the model's fields:
    numbers or (n,); returns shape (n,).
    """
    columns = np.broadcast_arrays(units, model.top_k, model.expert_groups, model.top_k_groups)
    sizes = [int(c.max(initial=0)) + 1 for c in columns]
    keys = np.ravel_multi_index([c.ravel().astype(np.int64) for c in columns], sizes)
    cases, index = np.unique(keys, return_inverse=True)
    hit = np.array([_reached(*map(int, case)) for case in zip(*np.unravel_index(cases, sizes), strict=True)])
    return hit[index].reshape(columns[0].shape)


def _reached(units: int, top_k: int, groups: int, chosen: int) -> float:
    if not groups:
        return units * (1.0 - (1.0 - 1.0 / units) ** top_k)
    if units >= groups:
        allowed = units * chosen / groups
        return allowed * (1.0 - (1.0 - 1.0 / allowed) ** top_k)
    # A unit of several groups holds j of the chosen ones (hypergeometric), and none of the experts by chance.
    held = round(groups / units)
    draws = [comb(held, j) * comb(groups - held, chosen - j) for j in range(min(held, chosen) + 1)]
    missed = sum(n * (1.0 - j / chosen) ** top_k for j, n in enumerate(draws)) / sum(draws)
    return units * (1.0 - missed)
