"""A rank's memory told once more for one layout, in plain numbers: `planner.costs.memory` beside it.

What a layer's tensors take, and how many parameters a rank has, is asked of planner; both have tests by hand.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.choices.enumerations import GradDtype, MainDtype, OptimizerKind, Precision, Recompute


def of_first(number: int, layers: int, stages: int, but_last: int = 0, behind: int = 0) -> int:
    """Layers among the first `number` of every stage `behind` others, the stages listed; its last ones left out."""
    held = [layers // stages + (i < layers % stages) for i in range(stages)]
    return sum(min(number, max(n - behind - but_last, 0)) for n in held)


class Remembered:
    """One layout of a case: what its rank keeps.

    saved, plain: bytes of a layer's tensors, and of those that one layer makes again, as the layout recomputes and
    without recomputation; scores: of the scores' gradient. common, routed: products as (rows, columns, depth, count).
    """

    def __init__(self, case: Any, x: Any, part: Any, asked: Any) -> None:
        self.x, self.m, self.f, self.part, self.asked = x, case.model, case.framework, part, asked
        self.fp32 = x.precision in (Precision.FP32, Precision.TF32)
        self.narrow = x.main_dtype == MainDtype.BF16
        self.copied = not self.fp32 and not (self.narrow and case.framework.one_sharded_copy)
        self.e = 4.0 if self.fp32 else 2.0
        self.operand = {Precision.FP8: 1.0, Precision.NVFP4: 0.5625}.get(x.precision, self.e)
        self.tokens = x.micro_batch * self.m.seq_len / x.cp
        self.at_once = self.tokens / x.sequence_slices
        self.shared = x.tp if x.sequence_parallel else 1
        busiest = min(x.expert_imbalance, x.capacity_factor or float("inf"))
        self.copies = self.m.top_k * busiest
        layers = self.m.num_layers / x.pp if busiest > 1 else 1.0
        self.together = self.m.top_k * (1 + (busiest - 1) / layers**0.5)
        self.vocab = ceil(self.m.vocab / (128 * x.tp)) * 128 * x.tp
        self.shards = x.dp * x.cp // x.dp_replicate
        of_expert = max(x.tp * x.dp * x.cp // max(x.etp * x.ep, 1), 1)
        self.expert_shards = max(of_expert // x.dp_replicate, 1)
        self.frozen = x.train > 0
        split = x.ep > 1 and (x.pp == 1 or x.virtual_stages > 1)
        self.turns = split and self.f.overlap_experts > 0 and x.recompute != Recompute.FULL
        self.turns = self.turns and not self.fp32 and self.m.num_mtp_layers <= (x.pp > 1)

    def sharded(self, dense: float, experts: float, stage: int) -> float:
        """A state's amount that a rank keeps, which ZeRO shards from a stage on."""
        return dense / self.shards + experts / self.expert_shards if self.x.zero >= stage else dense + experts

    def stated(self, dtype: int, own: float) -> float:
        return {0: own, int(GradDtype.FP32): max(own, 4.0), int(GradDtype.BF16): min(own, 2.0)}[int(dtype)]

    def format_bytes(self) -> tuple[float, float, float, float]:
        """Of a parameter, a layer's parameter, its copies for products, and a gradient that is summed."""
        x, f, fp16 = self.x, self.f, self.x.precision == Precision.FP16
        parameter = 4.0 if self.fp32 else 2.0
        eighth = x.precision == Precision.FP8 and x.zero > 0
        copies = 0.0
        if x.precision in (Precision.FP8, Precision.NVFP4):
            value = f.fp8_parameter_bytes if f.fp8_parameter_bytes < 2 and not eighth else 0.0
            copies = (f.fp8_copy_bytes + value) * self.operand
        in_layers = x.zero == 3 or (x.zero == 2 and f.zero2_by_layer)
        own = f.bf16_scattered_bytes if in_layers else f.bf16_grad_reduce_bytes
        own = f.grad_reduce_bytes if fp16 else own
        own = min(own, 2.0) if self.narrow and not f.reduces_by_policy else own
        summed = self.stated(x.grad_reduce_dtype or x.grad_dtype, own)
        return parameter, f.fp8_parameter_bytes if eighth else parameter, copies, 4.0 if self.fp32 else summed

    def layer(
        self, saved: tuple[float, float], recompute: int, before: float, copies: float = 0.0
    ) -> tuple[float, float]:
        """What a layer keeps, and makes again: other ranks' inputs come on top, a fused gate's tensors off it.

        before: what stays of it before its experts. copies: of a token's, those of all layers together unless given.
        """
        (kept, again), f, m = saved, self.f, self.m
        whole = recompute == Recompute.FULL or (recompute == Recompute.SELECTIVE and f.selective_operations)
        if not whole and not self.frozen and self.x.sequence_parallel:
            kept += f.gathered_inputs * (1 - 1 / self.x.tp) * self.tokens * m.hidden * self.operand
        if recompute == Recompute.FULL:
            kept += f.cached_keys_values * self.both() + (before if f.holds_router_loss else 0.0)
        copies = copies or self.together
        width = self.part.dense * m.ffn + self.part.sparse * (copies + m.num_shared_experts) * m.moe_ffn
        weighed = f.gate_tensors >= 4 and not f.kept_expert_outputs
        width = (4 - f.gate_tensors) * width - weighed * self.part.sparse * copies * m.moe_ffn
        less = m.gated * self.tokens / self.x.tp * width * self.e
        return (kept, again - less / self.x.sequence_slices) if whole else (kept - less, again)

    def both(self) -> float:
        """Keys and values of a layer."""
        keys = max(self.m.num_kv_heads, self.x.tp) * self.m.head_dim / self.x.tp
        return float(2 * self.tokens * keys * self.e)

    def activations(self) -> dict[str, float]:
        """Of one micro-batch."""
        x, m, f, e, a = self.x, self.m, self.f, self.e, self.asked
        kept, _ = self.layer(a.together, x.recompute, a.before)
        _, again = self.layer(a.saved, x.recompute, 0.0, self.copies)
        some = x.recompute_layers > 0
        columns = self.vocab if f.gathered_logits else self.vocab / x.tp
        copies = f.pipelined_logit_copies if x.pp > 1 else f.logit_copies
        copies = max(copies, f.split_logit_copies) if x.tp > 1 else copies
        hidden = self.at_once * m.hidden * e
        inner = 2 * self.at_once * max(m.ffn, m.moe_ffn * self.copies) / x.tp * e
        module = self.layer(a.module, x.recompute, a.module_before)[0] if m.num_mlp_only_layers else kept
        plain = self.layer(a.plain, Recompute.NONE, 0.0)[0]
        drops = m.dropout and x.attention < 2
        return {
            "layer": kept, "embedding": self.tokens * m.hidden / self.shared * (e + drops * e / 2),
            "logits": self.at_once / f.logit_chunks * columns * (e + (1 + m.num_mtp_layers) * 4 * copies),
            "loss": self.at_once * columns * (e + 4),
            "modules": m.num_mtp_layers * (module + 4 * self.tokens * m.hidden * e / self.shared),
            "working": again + max(inner, a.scores) + hidden * (3 if x.sequence_parallel and x.tp > 1 else 2),
            "keys_values": self.both() if x.sequence_slices > 1 else 0.0,
            "weight_grad_share": self.held_for_weights() / a.saved[0],
            "whole": plain - kept if some else 0.0, "again": again if some else 0.0,
            "moved": min(a.moved, kept) if x.offload_modules else plain if some else kept,
        }  # fmt: skip

    def held_for_weights(self) -> float:
        """Inputs and output gradients of all products; those of the hidden state's size in shards."""
        if self.frozen:
            return float(self.asked.adapters)
        total, wide, m = 0.0, of_latents(self), self.m
        for rows, columns, depth, count in self.asked.common + self.asked.routed:
            total += rows * count * (columns + depth)
        ordinary = sum(rows * n for rows, _, _, n in self.asked.common) - wide
        ordinary = ordinary * m.hidden + sum(r * n for r, _, _, n in self.asked.routed) * (m.moe_latent or m.hidden)
        return float(self.tokens * self.operand * (total - ordinary * (1 - 1 / self.shared)))

    def rank(self, own: Any, moves: Any, at: Any) -> dict[str, float]:
        """Peak bytes of a rank; at: its layers, micro-batches in flight, shares of the ends, copies and versions."""
        x, m, f, held = self.x, self.m, self.f, self.activations()
        parameter, of_layer, fp8, summed = self.format_bytes()
        slack = 1 + f.fragmentation
        alone = at.layers - of_first(x.recompute_layers, at.layers, x.virtual_stages) if x.recompute_layers else 0
        number = at.layers if x.offload_modules else x.offload_layers  # modules are moved of all but the last
        moved = of_first(number, at.layers, x.virtual_stages, 1, behind=x.recompute_layers)
        freed = held["layer"] * at.layers - held["moved"] * moved + held["whole"] * alone + at.first * held["embedding"]
        gradient = 4.0
        if not self.fp32:
            gradient = self.summed_gradient()
            kept = f.kept_pass_gradient_bytes if self.keeps_pass_gradient() else 0.0
            gradient += kept + (f.bucket_bytes if x.zero == 0 else 0.0)
        gradient *= 1 - self.waiting_gradients()
        gradients = self.sharded(moves.dense, moves.experts, 2) * gradient
        in_layers = x.zero == 3 or (x.zero == 2 and f.zero2_by_layer)
        if f.defers_scatter and in_layers and x.micro_batches > 1 and x.pp == 1 and self.shards > 1:
            gradients = max(gradients, moves.total * summed)
        gradients *= at.copies
        logits = at.last * held["logits"]
        working = held["working"] - (held["again"] if alone else 0) + (held["moved"] if moved else 0)
        working += held["layer"] if self.turns else 0
        buffers = (working + at.layers * held["keys_values"]) * slack
        whole = self.whole(own, moves, at, of_layer + fp8, parameter, summed)
        if f.freed_in_turn:
            buffers, logits = self.moments(buffers, logits, whole, moves, at, parameter)
            waiting = max(at.in_flight - 1, 0) * at.last * held["loss"] if at.waiting else 0.0
            logits += waiting
            if x.zero == 0 and x.dp * x.cp > 1:  # buckets, and the sum of several micro-batches beside them
                gradients *= 2 if x.micro_batches > 1 else 1
            elif at.in_flight >= x.micro_batches and f.gradient_passes == 0:
                gradients = max(gradients - freed - logits / max(at.in_flight, 1), 0.0)
        else:
            buffers += max(whole["scattered"], whole["end_scattered"]) + whole["gathered"] + whole["ends_gathered"]
        buffers += self.spare()
        if x.zero and not (self.keeps_pass_gradient() and f.kept_pass_gradient_bytes):
            buffers += min(f.reduce_buffers, 1 if x.zero == 3 or x.pp > 1 else 9) * f.reduce_bucket_parameters * self.e
        if f.stage_buffers and x.pp > 1:
            one = self.tokens * m.hidden * self.e / self.shared
            buffers += x.micro_batches * (2 * x.virtual_stages - at.first - at.last) * one
        if f.pass_gradient_bytes and not self.fp32:
            grown = f.pass_gradient_bytes * moves.total
            buffers += max(grown - freed - at.last * held["logits"], 0.0)
        if self.keeps_pass_gradient() and f.kept_pass_gradient_bytes and moves.ends:
            table = 1.0 if m.tied else max(at.first, at.last) / max(at.first + at.last, 1e-9)
            buffers += 4 * table * moves.ends
        if f.gather_copy_bytes and self.shards > 1 and x.zero in (1, 2):
            wide = (2 if m.gated else 1) * max(m.ffn, m.moe_ffn * self.copies) * self.e
            largest = self.at_once / x.tp * max(wide, self.vocab * 4 if at.last > 0 else 0.0)
            buffers += f.gather_copy_bytes * moves.total if f.gather_copy_bytes * moves.total > largest else 0.0
        dense = own.layers * of_layer + own.ends * parameter
        parameters = self.sharded(dense, own.experts * of_layer, 3) * at.copies * at.versions
        if f.one_sharded_copy and x.zero == 3 and self.copied and not self.frozen:
            parameters = 0.0
        stays = 1 - x.offload_fraction if x.offload_optimizer else 1.0
        if f.one_sharded_copy and not self.copied and x.zero in (1, 2):  # the shard that is updated
            shard = dense / self.shards * (self.shards > 1)
            shard += own.experts * of_layer / self.expert_shards * (self.expert_shards > 1)
            parameters += (1 - self.parameters_away()) * shard * at.copies
        if self.frozen:
            parameters += self.sharded(moves.dense, moves.experts, 3) * parameter * at.copies * at.versions
        if x.zero == 3:
            parameters *= 1 - self.parameters_away()
        whole_copies = f.sharded_fp8_copy_bytes * self.operand * (x.precision in (Precision.FP8, Precision.NVFP4))
        parameters += (fp8 if x.zero < 3 else whole_copies) * (own.layers + own.experts) * at.copies
        return {
            "parameters_bytes": parameters, "gradients_bytes": gradients,
            "optimizer_bytes": stays * self.states(moves) * at.copies,
            "activations_bytes": at.in_flight * (freed + at.modules * held["modules"]) * slack,
            "logits_bytes": logits * slack, "buffers_bytes": buffers, "reserved_bytes": f.reserved_bytes,
        }  # fmt: skip

    def parameters_away(self) -> float:
        """Share of sharded parameters in host memory."""
        with_state = self.f.one_sharded_copy and self.x.offload_optimizer
        return max(self.x.offload_parameters, self.x.offload_fraction if with_state else 0.0)

    def summed_gradient(self) -> float:
        """Bytes of the gradient that adds up micro-batches."""
        fp16 = self.x.precision == Precision.FP16
        dtype = GradDtype.BF16 if self.narrow else self.x.grad_dtype
        return self.stated(dtype, self.f.gradient_bytes if fp16 else self.f.bf16_gradient_bytes)

    def keeps_pass_gradient(self) -> bool:
        """Whether a 16-bit gradient can stay beside an fp32 sum."""
        x = self.x
        return x.zero < 2 and not x.offload_optimizer and x.precision >= Precision.BF16 and self.summed_gradient() >= 4

    def waiting_gradients(self) -> float:
        """Share of the gradients in host memory."""
        x, f = self.x, self.f
        wide = self.fp32 or self.summed_gradient() >= 4
        least = f.host_fp32_gradients_zero if wide else f.host_gradients_zero
        return x.offload_fraction if x.offload_optimizer and x.zero >= least else 0.0

    def states(self, moves: Any) -> float:
        """Bytes of the optimizer's: its parameters in mixed precision, moments, what an update takes."""
        x, f = self.x, self.f
        wide = 2.0 if self.narrow else 4.0
        moments = {OptimizerKind.ADAM: 2 * wide, OptimizerKind.ADAM_BF16: 4.0, OptimizerKind.ADAM_8BIT: 2 + 8 / 256}
        each = wide if self.copied else 0.0
        remainders = f.param_remainders and x.precision in (Precision.BF16, Precision.NVFP4)
        if remainders and not self.narrow and x.optimizer == OptimizerKind.ADAM_BF16:
            each -= 2.0
        matrices = each + moments.get(x.optimizer, wide)
        ends = each + (2 * wide if x.optimizer == OptimizerKind.MUON else moments.get(x.optimizer, wide))
        cast = 0.0
        if not self.fp32 and not self.narrow and self.summed_gradient() < 4:
            at_once = f.update_parameters if x.zero == 3 and f.update_parameters else 1e99
            cast = f.update_bytes * min(self.sharded(moves.dense, moves.experts, 1), at_once)
        return cast + self.sharded(moves.layers * matrices + moves.ends * ends, moves.experts * matrices, 1)

    def spare(self) -> float:
        """An empty gradient as large as each kind of matrix."""
        if not self.f.spare_gradients or self.frozen:
            return 0.0
        return self.e * sum(columns * depth for _, columns, depth, n in self.asked.common + self.asked.routed if n > 0)

    def whole(
        self, own: Any, moves: Any, at: Any, of_layer: float, parameter: float, summed: float
    ) -> dict[str, float]:
        """Gradients before their scatter, and with ZeRO-3 gathered parameters; of the larger end what it is alone."""
        m, f, x = self.m, self.f, self.x
        names = ("scattered", "end_scattered", "gathered", "ends_gathered", "end", "end_copies")
        scatters, away = self.shards > 1, self.parameters_away() > 0 and x.zero == 3
        if x.zero < 2 or not (scatters or away):
            return dict.fromkeys(names, 0.0)
        layers = max(at.layers + at.modules * m.num_mtp_modules, 1)
        matrix = m.hidden * max(m.ffn, m.moe_ffn) / x.tp
        most = matrix if f.reduce_buffers else max(matrix, f.reduce_bucket_parameters or float("inf"))
        scattered = min(min(at.at_once, at.layers) * (moves.layers + moves.experts) / layers, most)
        most = max(matrix, f.live_parameters or float("inf"))
        gathered = min(min(2 * at.at_once, at.layers) * (own.layers + own.experts) / layers, most)
        if f.keeps_gathered and x.recompute != Recompute.FULL:
            gathered = own.layers + own.experts
        larger = self.larger(at)
        gathers, table = x.zero == 3, larger if f.reduce_buffers else 1.0
        values = (
            scattered * summed * scatters, table * moves.ends * summed * scatters, gathered * of_layer * gathers,
            own.ends * parameter * gathers, larger * own.ends * parameter,
            larger * moves.ends * (f.scatter_bytes + summed / self.shards) * scatters,
        )  # fmt: skip
        return dict(zip(names, values, strict=True))

    def larger(self, at: Any) -> float:
        """The share of the larger of embedding and head; tied ones are one matrix."""
        return 1.0 if self.m.tied else max(at.first, at.last) / max(at.first + at.last, 1e-9)

    def moments(
        self, working: float, logits: float, whole: dict[str, float], moves: Any, at: Any, parameter: float
    ) -> tuple[float, float]:
        """The fullest of the moments after the forward passes: the loss, a layer's pass, the head's sum or scatter."""
        x, loss = self.x, at.last * self.activations()["loss"]
        if x.micro_batches > 1 and x.zero < 2:
            summed = self.larger(at) * moves.ends * parameter + loss / (2 if x.pp == 1 else 1)
            working = max(working, summed)
        layer = whole["gathered"] / 2
        scatter = whole["end_copies"] + (layer + max(whole["end"], layer) if x.zero == 3 else 0.0)
        peak = max(working + whole["gathered"] + whole["scattered"], scatter)
        head = whole["end"] if x.zero == 3 else 0.0
        return peak, max(logits + head - peak, 0.0)


def of_latents(told: Remembered) -> float:
    """Products whose input is no hidden state: up from attention's latents, to and from experts' on a rank's shard."""
    m, part = told.m, told.part
    up = part.attention * (2 if m.q_lora_rank else 1) if m.kv_lora_rank else 0.0
    return float(up + (2 * part.sparse / told.shared if m.moe_latent else 0.0))
