"""What brings copies of tokens to the ranks of their experts and back, in seconds. Array-first, shape (n,)."""

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.layer.expert_routing import by_node, dispatchers, reached
from planner.costs.layer.kept_operations import by_operation
from planner.costs.network.collectives import all_gather_s, all_to_all_s, dispatch_s
from planner.costs.network.groups import Group
from planner.layouts import Dispatcher, Recompute
from planner.models import mix


def expert_s(case: Case, group: Group, tensor: Group) -> tuple[Array, Array]:
    """Dispatch and combine, each a token's hidden state, or latent, to top_k experts, averaged over all layers.

    With sequence parallelism experts that are cut over the tensor group gather every copy there before their products
    and scatter it after, in 16 bits and beside no product (Megatron-Core, token_dispatcher.py; Liu et al. 2025, arXiv
    2504.14960). Where tokens are gathered first, one copy of each goes round both groups, and back. Full recomputation
    repeats all, as one by operation may, or the dispatch alone where it ends with the last tensor that is needed: a
    combine of weighted outputs keeps none. The rank with the busiest experts, which receives most, sets the pace.

    In a plain exchange ranks first tell one another how many copies come, unless all are padded to a capacity. Where a
    copy's weight counts inside its expert it follows, and its gradient comes back (Megatron-Core and torchtitan,
    token_dispatcher.py). Each takes as long as an exchange of nothing.
    """
    model, layouts = case.model, case.layouts
    tokens = case.pass_tokens * mix.expert_width(model) / layouts.tp * case.device.element_bytes
    node = by_node(case)
    one = all_to_all_s(group, tokens * model.top_k)
    if np.any(node):
        kernel = np.where(dispatchers(case) == Dispatcher.DEEPEP, case.framework.deepep_bytes_per_s, np.inf)
        once = dispatch_s(group, tokens, reached(model, group.ranks), reached(model, group.nodes), kernel)
        one = np.where(node, once, one)
    one = np.where(case.pickers > 1, 0.0, one)
    cut = layouts.sequence_parallel & (layouts.etp == layouts.tp)
    copies = np.asarray(layouts.ep if case.framework.gathered_tokens else model.top_k)
    if case.framework.gathered_tokens:
        one = all_gather_s(group, tokens * copies)
    one = one + np.where(cut, all_gather_s(tensor, tokens * layouts.tp * copies), 0.0)
    each, kept = mix.shares(model).sparse * layouts.sequence_slices, case.framework.kept_expert_outputs
    once = 2.0 * case.busiest * each * one
    plain = ~node & (case.pickers == 1) & (not case.framework.gathered_tokens)
    start = np.where(plain, each * all_to_all_s(group, 0.0), 0.0)
    weights, counts = start * (not kept), start * (layouts.capacity_factor == 0.0)
    ends = case.stops_early & (not kept)
    again = np.where(ends & (np.asarray(model.moe_latent) == 0), 0.5, 1.0)
    repeats = (layouts.recompute == Recompute.FULL) | (by_operation(case) & case.framework.exchanges_again)
    repeated = np.where(repeats, again * once + counts + weights, 0.0)
    return once + counts + weights, once + weights + repeated
