"""A layer as its collectives show, a rank's passes and a step's parts, told once more for one layout in plain numbers.

What operations and collectives take is given; how layers lie on stages and how long a schedule runs is asked.
"""

from __future__ import annotations

from typing import Any

from planner.layouts import Recompute


def beside(f: Any, seconds: float, taken: float, pass_s: float) -> float:
    """What a sharded collective adds to the pass that it runs beside."""
    return seconds if f.overlap_param_gather == 0 else max(seconds - pass_s, taken)


class Shown:
    """One layout: what of a layer's collectives and launches its passes show. f: the framework.

    cost, wire: seconds of a layer's work and of its collectives, by name. launches: the host's of either pass.
    """

    def __init__(self, f: Any, x: Any, cost: Any, wire: Any, launches: tuple[float, float], sparse: bool) -> None:
        self.f, self.x, self.cost, self.wire, self.sparse = f, x, cost, wire, sparse
        self.launches = launches
        split = x.ep > 1 and (x.pp == 1 or x.virtual_stages > 1)
        self.turns = split and x.recompute != Recompute.FULL and x.modules <= (x.pp > 1)

    def told(self) -> dict[str, float]:
        """`LayerTime`, each part after the one that it hides under."""
        f, x, cost, w = self.f, self.x, self.cost, self.wire
        own_f = cost.forward_matmul_s + cost.forward_attention_s + cost.forward_scan_s + cost.forward_pointwise_s
        own_b = cost.backward_matmul_s + cost.backward_attention_s + cost.backward_scan_s + cost.backward_pointwise_s
        own_b += cost.recompute_s
        there, back = f.tensor_slowdown * w.layer_forward_s, f.tensor_slowdown * w.layer_backward_s
        half = 0.5 if x.sequence_parallel else 1.0
        hidden = min(f.overlap_tensor_backward * half * there, cost.weight_grad_s * 7 / 12)
        shown = 1 if x.latent else 1 - f.overlap_tensor
        tensor_f, tensor_b = shown * there, shown * (back - hidden)
        ring_f, ring_b = w.context_forward_s, w.context_backward_s
        if not f.gathered_context and not (f.sdpa_context and f.compiled_layers):
            parts = x.cp / x.ulysses if f.sdpa_context else 1
            ring_f = max(ring_f - cost.forward_attention_s / parts, w.context_gather_forward_s / 10)
            ring_b = max(ring_b - cost.backward_attention_s, w.context_gather_backward_s / 10)
        context_f, context_b = ring_f + w.exchange_forward_s, ring_b + w.exchange_backward_s
        f_s, b_s = own_f + tensor_f + context_f, own_b + tensor_b + context_b
        share = f.overlap_experts if self.turns else 0.0
        expert_f = w.expert_forward_s - min(share * f_s, share * w.expert_forward_s)
        expert_b = w.expert_backward_s - min(share * b_s, share * w.expert_backward_s)
        f_s, b_s = f_s + expert_f, b_s + expert_b
        times = 1.0
        if x.at_a_time:
            times = 0.0 if x.pp > 1 else 1 / x.micro_batches
        again = 1.0 if x.zero == 3 else 0.0
        gather_f = beside(f, times * w.layer_gather_s, times * w.layer_gather_taken_s, f_s)
        gather_f += times * w.layer_copy_out_s
        both = again * w.layer_gather_s + w.layer_reduce_s, again * w.layer_gather_taken_s + w.layer_reduce_taken_s
        gather_b = beside(f, times * both[0], times * both[1], b_s)
        last = 1 / x.micro_batches if x.once and not x.at_a_time else 1.0
        before = beside(f, again * w.layer_gather_s, again * w.layer_gather_taken_s, b_s)
        gather_b = last * gather_b + (1 - last) * before
        gather_b += times * (again * w.layer_copy_out_s + last * w.layer_copy_in_s)
        f_s, b_s = f_s + gather_f, b_s + gather_b
        wait_f, wait_b, idle_f, idle_b = self.waits(f_s, b_s)
        return {
            "forward_s": f_s + wait_f, "backward_s": b_s + wait_b, "tensor_s": tensor_f + tensor_b,
            "context_s": context_f + context_b, "expert_s": expert_f + expert_b, "sharding_s": gather_f + gather_b,
            "host_s": wait_f + wait_b, "idle_forward_s": idle_f, "idle_backward_s": idle_b,
        }  # fmt: skip

    def waits(self, f_s: float, b_s: float) -> tuple[float, float, float, float]:
        """Of either pass, for launches; and the part that whatever holds the device up takes the place of."""
        there, back = self.launches
        selects = self.x.recompute == Recompute.SELECTIVE and self.f.selective_operations
        if self.x.recompute == Recompute.FULL or selects:
            back += there
        if self.f.blocking_launches:
            return there, back, 0.0, 0.0
        late_f, late_b = max(there - f_s, 0.0), max(back - b_s, 0.0)
        in_turn = self.f.overlap_experts > 0 and self.turns
        if self.sparse and not self.x.capacity_factor and not in_turn:
            return late_f, late_b, 0.0, 0.0
        both = max(there + back - f_s - b_s, 0.0)
        idle_f = both * late_f / (late_f + late_b) if both else 0.0
        idle_b = both - idle_f
        lag = min(late_f, max(b_s - back, 0.0)) / (1 if self.x.at_a_time else self.x.micro_batches)
        return idle_f + lag, idle_b, idle_f, idle_b


class Rank:
    """A rank of one layout: its seconds. costs: of a layer, of the ends, of transfers and collectives, by name."""

    def __init__(self, f: Any, x: Any, costs: Any, held: Any) -> None:
        self.f, self.x, self.c, self.held = f, x, costs, held

    def passes(self) -> tuple[float, float, float]:
        """Forward, input gradient and weight gradient of one micro-batch."""
        c, h, v = self.c, self.held, self.x.virtual_stages
        ends = c.ends_s / 4 + (0.0 if self.x.at_a_time and self.x.pp > 1 else c.ends_sharding_s / 4)
        forward = h.layers * c.forward_s + (v - h.first) * c.send_s + (h.first + h.last) * ends
        forward += h.first * c.embedding_forward_s + h.last * c.head_forward_s + h.modules * c.module_forward_s
        backward = h.layers * c.backward_s + (v - h.last) * c.send_s + (h.first + h.last) * ends
        backward += h.first * c.embedding_backward_s + h.last * c.head_backward_s + h.modules * c.module_backward_s
        weights = h.layers * c.weight_grad_s + (h.last * c.head_backward_s + h.modules * c.module_backward_s) / 2
        return forward, backward - weights, weights

    def data(self) -> tuple[float, float, float, float]:
        """Reductions and a gather of a step, each with what of it hides."""
        f, x, c, v = self.f, self.x, self.c, self.x.virtual_stages
        forward, of_input, of_weights = self.passes()
        backward = of_input + of_weights
        share = f.overlap_grad_reduce_pipelined if x.pp > 1 and not x.at_a_time else f.overlap_grad_reduce
        if x.at_a_time:
            others = max(x.micro_batches, x.pp) * (v - 1) / v
            reduced = min(share * others * backward, min(share, (v - 1) / v) * c.reduce_s)
            gathered = c.gather_s - beside(f, c.gather_s, c.gather_taken_s, others * forward)
            return c.reduce_s, reduced, c.gather_s, min(gathered, (v - 1) / v * c.gather_s)
        gathered = c.gather_s - beside(f, c.gather_s, c.gather_taken_s, forward)
        last = min(share * backward, share * c.reduce_s)
        if x.zero != 2:
            return c.reduce_s, last, c.gather_s, gathered
        idle_f, idle_b = self.held.layers * c.idle_forward_s, self.held.layers * c.idle_backward_s
        earlier = min(share * (backward - idle_b), share * c.reduce_s)
        earlier = min(earlier + idle_f + idle_b, c.reduce_s)
        m = x.micro_batches
        return m * c.reduce_s, last + (m - 1) * earlier, c.gather_s, gathered
