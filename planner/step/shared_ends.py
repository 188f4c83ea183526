"""Embedding and head in equal parts on all ranks of a pipeline: vocabulary parallelism (Yeung et al. 2024, 2411.05288).

Both tables are cut as over tp * pp tensor ranks. The hidden states of a micro-batch go to all ranks and their gradient
is summed over them, each beside the passes where the schedule hides it; what the softmax needs of all ranks takes a few
numbers a token.
"""

from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.case import Case
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.kernels.device import stream_s
from planner.costs.layer.embedding_head import EmbeddingHeadCost, embedding_head_cost
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.memory.rank import Activations, activations
from planner.costs.network.collectives import all_gather_s, all_reduce_s
from planner.costs.network.groups import place
from planner.costs.network.traffic import Traffic
from planner.costs.placement import node_ranks
from planner.step.pipelines import trait


@record
class SharedHead:
    """Seconds of a rank's part of the head for one micro-batch, and of what ranks exchange; shape (n,).

    parts_s: operations S, T, U and V. spread_s: hidden states go from the last stage to all ranks. told_s: ranks
    exchange the softmax's numbers. summed_s: the input gradient is summed on the last stage. These three are 0 where
    nothing hides them: then `parts_s` have them.
    """

    parts_s: tuple[Array, Array, Array, Array]
    spread_s: Array
    told_s: Array
    summed_s: Array

    def lags_s(self, i: int) -> tuple[float, ...]:
        """How long after what it waits for an operation of each kind starts, of layout i; by `KINDS`."""
        spread, told, summed = (float(np.ravel(x)[i]) for x in (self.spread_s, self.told_s, self.summed_s))
        return (0.0, summed, summed, 0.0, spread, told, spread, told)


def shared_ends(
    case: Case, cost: LayerCost, ends: EmbeddingHeadCost, held: Activations, t: Traffic
) -> tuple[EmbeddingHeadCost, Activations, Traffic, SharedHead | None]:
    """Ends, activations and traffic where schedules with barriers share the ends, and the head's passes.

    Without such a schedule all stay as they are and there is no shared head. Costs are those of all ranks together;
    each rank has a p-th. Each rank writes the whole embedding output, and looks up and scatters a p-th of the tokens on
    average. Algorithm 2 also reads the targets' rows, and scales and joins two parts of the input gradient after its
    barrier. Ranks that do the ends at once show what they exchange: both sums and the loss's three numbers as tensor
    ranks do, with all-reduces, and two broadcasts (Yeung et al.'s repository, interlaced_schedule.py, vocab_output.py).
    """
    if not np.any(barriers := trait(case.layouts, "barriers")):
        return ends, held, t, None
    p, model, two = np.asarray(case.layouts.pp, dtype=np.float64), case.model, barriers > 1
    shown = trait(case.layouts, "waits_show")
    cut = replace(
        case,
        layouts=replace(case.layouts, tp=case.layouts.tp * case.layouts.pp),
        framework=replace(case.framework, gathered_logits=False, recomputed_head=False),
    )
    _, own = with_accumulation(cut, np.zeros(1), cost, embedding_head_cost(cut), False)
    hidden = case.pass_tokens * model.hidden * case.device.element_bytes
    joined = stream_s(case.device, 5.0 * hidden, 2.0)
    ends_of_all = EmbeddingHeadCost(
        embedding_forward_s=(p + 1.0) / 2.0 * own.embedding_forward_s,
        embedding_backward_s=own.embedding_backward_s,
        head_forward_s=p * (own.head_forward_s + np.where(two, 0.0, joined)),
        head_backward_s=p * own.head_backward_s,
        module_forward_s=ends.module_forward_s,
        module_backward_s=ends.module_backward_s,
    )
    group = place(
        case.cluster.of_traffic("pipeline"), case.layouts.pp, case.layouts.tp * case.layouts.cp * case.layouts.dp,
        node_ranks(case.cluster, case.layouts.gpus), case.layouts.gpus,
    )  # fmt: skip
    spread = all_gather_s(group, hidden / case.token_shares)
    told = all_reduce_s(group, 2.0 * 4.0 * case.pass_tokens)
    sums = 2.0 * all_reduce_s(group, hidden / case.token_shares) + 3.0 * all_reduce_s(group, 4.0 * case.pass_tokens)
    ends_s = t.ends_s + np.where(shown, sums + 2.0 * spread, 0.0)
    S, T = own.head_forward_s + ends_s / 4.0, own.head_backward_s + ends_s / 4.0
    half = own.head_backward_s / 2.0
    hidden_s = [np.where(shown, 0.0, x) for x in (spread, told, spread + np.where(two, 0.0, told))]
    head = SharedHead(
        parts_s=(S, T, S + half + joined, half + ends_s / 4.0),
        spread_s=hidden_s[0], told_s=hidden_s[1], summed_s=hidden_s[2],
    )  # fmt: skip
    logits = p * (activations(cut).logits + hidden)

    def where(new: Array, old: Array) -> Array:
        return np.where((barriers > 0) & (p > 1), new, old)

    return (
        EmbeddingHeadCost(**{name: where(x, getattr(ends, name)) for name, x in vars(ends_of_all).items()}),
        replace(held, logits=where(logits, held.logits), embedding=where(p * held.embedding, held.embedding)),
        replace(t, ends_s=where(p * ends_s, t.ends_s)),
        head,
    )
