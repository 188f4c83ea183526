"""A layer's, the ends' and the update's seconds, and a layer's tensors, told once more for one layout.

What a kernel of a shape takes is asked of planner (`planner.costs.kernels`), and so are attention's core, a
state-space's scan, casts and routing, which have tests of their own.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.choices.enumerations import Attention, GradDtype, MainDtype, OptimizerKind, Precision, Recompute
from planner.costs.kernels.device import aligned_share, group_s, matmul_s


class Layer:
    """One layout of a case. asked: seconds and bytes of kernels that are not told here."""

    def __init__(self, case: Any, device: Any, x: Any, part: Any, asked: Any) -> None:
        self.x, self.m, self.f, self.part, self.asked, self.device = x, case.model, case.framework, part, asked, device
        self.cluster = case.cluster
        self.fp32 = x.precision in (Precision.FP32, Precision.TF32)
        self.e = 4.0 if self.fp32 else 2.0
        self.operand = {Precision.FP8: 1.0, Precision.NVFP4: 0.5625}.get(x.precision, self.e)
        self.tokens = x.micro_batch * self.m.seq_len / x.cp
        self.passed = self.tokens / x.sequence_slices
        self.shared = x.tp if x.sequence_parallel else 1
        self.copies = self.m.top_k * min(x.expert_imbalance, x.capacity_factor or float("inf"))
        self.vocab = ceil(self.m.vocab / (128 * x.tp)) * 128 * x.tp
        self.latent, self.drops = self.m.kv_lora_rank > 0, bool(self.m.dropout and x.attention < Attention.FLASH1)
        self.value = self.m.v_head_dim if self.latent else self.m.head_dim
        self.keys = max(self.m.num_kv_heads, x.tp)
        chip = device.accelerator
        self.rate = chip.memory_bandwidth_bytes_per_s * chip.efficiency.memory_fraction
        self.start_s = chip.efficiency.kernel_latency_s

    def stream(self, size: float, kernels: float) -> float:
        return size / self.rate + kernels * self.start_s

    def product(self, device: Any, rows: float, columns: float, depth: float, *sides: float) -> float:
        return float(matmul_s(device, rows, columns, depth, aligned_share(device, self.e, *sides) if sides else 1.0)[0])

    # A layer's products: columns of attention's, the MLP's and the experts' weights, as one tensor rank has them.

    def products(self) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
        """(rows, columns, depth, count) of those that every token meets, and of routed experts'."""
        m, x, part, t = self.m, self.x, self.part, self.x.tp
        h, d, a = m.hidden, m.head_dim, m.num_heads
        common: list[tuple[float, ...]] = []
        if self.latent:
            common += [(1, m.kv_lora_rank + m.qk_rope_head_dim, h, part.attention)]
            common += [(1, m.q_lora_rank, h, part.attention)] if m.q_lora_rank else []
            common += [(1, a * d / t, m.q_lora_rank or h, part.attention)]
            common += [(1, a * (d - m.qk_rope_head_dim + m.v_head_dim) / t, m.kv_lora_rank, part.attention)]
        else:
            common += [(1, (a + 2 * self.keys) * d / t, h, part.attention)]
        common += [(1, h, a * self.value / t, part.attention)]
        if m.num_ssm_layers:
            inner, states = m.ssm_heads * m.ssm_head_dim, 2 * m.ssm_groups * m.ssm_state
            common += [(1, (2 * inner + states + m.ssm_heads) / t, h, part.ssm), (1, h, inner / t, part.ssm)]
        up = 2 if m.gated else 1
        common += [(1, up * m.ffn / t, h, part.dense), (1, h, m.ffn / t, part.dense)]
        if not m.num_experts:
            return common, []
        wide = m.moe_ffn * m.num_shared_experts / t
        common += [(1, up * wide, h, part.sparse), (1, h, wide, part.sparse)] if wide else []
        common += [(1, m.num_experts, h, part.sparse)]
        if m.moe_latent:
            common += [(1 / self.shared, m.moe_latent, h, part.sparse), (1 / self.shared, h, m.moe_latent, part.sparse)]
        local = m.num_experts / x.ep
        rows, inner = max(self.copies, 1) / local * x.etp / t, m.moe_ffn / x.etp
        width, count = m.moe_latent or h, part.sparse * local
        return common, [(rows, up * inner, width, count), (rows, width, inner, count)]

    def matmuls(self) -> tuple[float, float, float, float]:
        """Forward, input gradient, weight gradient, and the waits for launches in them."""
        local = max(self.m.num_experts, 1) / self.x.ep
        common, routed = self.products()
        total, waits = [0.0, 0.0, 0.0], 0.0
        for several, products in ((1.0, common), (local, routed)):
            for rows, columns, depth, count in products:
                n = self.passed * rows
                shapes = [(n, columns, depth, (depth,)), (n, depth, columns, (depth, columns)),
                          (columns, depth, n, (depth, columns))]  # fmt: skip
                for i, (r, c, d, sides) in enumerate(shapes):
                    along = aligned_share(self.device, self.device.matrix_bytes, *sides)
                    moved = self.summed_bytes() if i == 2 else None
                    one, wait = group_s(self.device, r, c, d, along, several, self.f.fused_experts, moved)
                    total[i] += count / several * float(one[0])
                    waits += count / several * float(wait[0])
        return total[0], total[1], total[2], waits

    def summed_bytes(self) -> float:
        """Bytes that the product of a weight's gradient moves per number."""
        x, f, narrow = self.x, self.f, self.x.precision >= Precision.BF16
        if f.bf16_accumulate_bytes if narrow else f.accumulate_bytes:
            return self.e
        if self.fp32:
            return 8.0
        own = f.bf16_gradient_bytes if narrow else f.gradient_bytes
        stated = GradDtype.BF16 if x.main_dtype == MainDtype.BF16 else x.grad_dtype
        return 2 * {0: own, int(GradDtype.FP32): max(own, 4.0), int(GradDtype.BF16): min(own, 2.0)}[int(stated)]

    def inner(self) -> tuple[float, float]:
        """Inner elements a token in MLPs, and those of them in routed experts."""
        m, part = self.m, self.part
        routed = part.sparse * self.copies * m.moe_ffn
        return part.dense * m.ffn + part.sparse * m.num_shared_experts * m.moe_ffn + routed, routed

    def pointwise(self) -> tuple[float, float, float]:
        """Passes over memory, forward and backward, and those that fine recomputation repeats."""
        m, x, part, f, t = self.m, self.x, self.part, self.f, self.x.tp
        hidden, heads = self.passed * m.hidden / self.shared, part.attention * self.passed / t
        total, fine = [0.0, 0.0], 0.0

        def passes(elements: float, kernels: float, there: float, back: float, again: float = 0.0) -> None:
            nonlocal fine
            if elements <= 0:
                return
            one = self.stream(elements * there * self.e, kernels)
            total[0] += one
            total[1] += self.stream(elements * back * self.e, 1.5 * kernels)
            fine += again * one

        if m.rms_norm and not x.fused_norm:
            there, back, kernels = (7, 21, 5) if self.fp32 else (22, 58.5, 7) if f.eager_llama else (18, 45, 7)
        else:
            there, back, kernels = 2, 5, 1
        passes(part.norms * hidden, part.norms / 2 * kernels, there, back, 1.0)
        both = heads * (m.num_heads + self.keys) * m.head_dim
        if m.qk_norm:
            passes(both, 2 * part.attention * kernels, there, back)
        passes(part.blocks * hidden, part.blocks / 2, 3, 2)
        if self.drops:
            passes(part.blocks * hidden, 0, 0.5, 2.5)
        wide, routed = (n * self.passed / t for n in self.inner())
        again = routed / max(wide, 1.0)
        if f.fused_experts:
            wide, again = wide - routed, 0.0
        mlps = part.dense + part.sparse
        if not m.gated:
            passes(wide, mlps, 2, 3, again)
        elif f.compiled_layers:
            passes(wide, mlps, 3, 6, again)
        else:
            passes(wide, (3 if f.gate_tensors > 4 else 2) * mlps, 7 if f.gate_tensors > 4 else 5, 8, again)
        if m.clamped:
            passes(wide, 3 * mlps, 8, 10, again)
        if m.rotary:
            one_key = part.attention * self.passed * m.qk_rope_head_dim
            turned = heads * m.num_heads * m.qk_rope_head_dim + one_key if self.latent else both
            unfused = (19, 23, 10) if f.eager_llama else (8, 8, 6)
            there, back, kernels = (2, 2, 2) if f.fused_rotary else unfused
            passes(turned, part.attention * kernels, there, back, float(self.latent))
        passes(both + heads * self.keys * self.value, 2 * part.attention, 2, 2, float(self.latent))
        further = x.cp / x.ulysses - 1
        if f.sdpa_context and further > 0:
            once, each = ((4, 26, 5), (5, 15, 3)) if f.compiled_layers else ((10, 53, 9), (20.4, 29.3, 9))
            queries = heads * m.num_heads * m.head_dim
            for n, (there, back, kernels) in ((min(further, 1), once), (further, each)):
                passes(queries * n, part.attention * n * kernels, there, back)
        for there_s, back_s in self.asked.passes:
            total[0], total[1] = total[0] + there_s, total[1] + back_s
        return total[0], total[1], fine

    def cost(self) -> dict[str, float]:
        """A layer's seconds for one micro-batch, slice by slice."""
        x, a, k = self.x, self.asked, self.x.sequence_slices
        forward, of_input, of_weights, waits = (k * s for s in self.matmuls())
        attention, attention_back = (self.part.attention * k * s for s in a.attention)
        scan, scan_back = (k * s for s in a.scan)
        pointwise, pointwise_back, fine = (k * s for s in self.pointwise())
        again = 0.0
        if x.recompute == Recompute.FULL:
            again = forward + attention + scan + pointwise
            if self.f.recompute_stops_early and x.zero < self.f.whole_repeats_zero and not self.drops:
                again -= k * self.last()
        elif x.recompute == Recompute.SELECTIVE:
            again = attention
            if self.f.selective_operations:
                again = k * a.dropped + scan + pointwise + (attention if self.f.repeats_attention else 0.0)
        elif x.recompute == Recompute.FINE:
            again = fine + k * self.from_latents()
        return {
            "forward_matmul_s": forward, "forward_attention_s": attention, "forward_scan_s": scan,
            "forward_pointwise_s": pointwise, "backward_matmul_s": of_input + of_weights,
            "backward_attention_s": attention_back, "backward_scan_s": scan_back,
            "backward_pointwise_s": pointwise_back, "recompute_s": again, "weight_grad_s": of_weights,
            "launch_s": waits,
        }  # fmt: skip

    def aligned(self, columns: float, depth: float) -> float:
        along = aligned_share(self.device, self.device.matrix_bytes, depth)
        return float(matmul_s(self.device, self.passed, columns, depth, along)[0])

    def last(self) -> float:
        """A dense MLP's product down and the sum after it."""
        part, h = self.part.dense, self.m.hidden
        moved = 3 * part * self.passed * h / self.shared * self.e
        return part * self.aligned(h, self.m.ffn / self.x.tp) + self.stream(moved, part)

    def from_latents(self) -> float:
        m, t = self.m, self.x.tp
        if not self.latent:
            return 0.0
        queries = self.aligned(m.num_heads * m.head_dim / t, m.q_lora_rank or m.hidden)
        keys = m.num_heads * (m.head_dim - m.qk_rope_head_dim + m.v_head_dim) / t
        return self.part.attention * (queries + self.aligned(keys, m.kv_lora_rank))

    def ends(self) -> dict[str, float]:
        """Embedding, head, and modules of multi-token prediction without their layers."""
        m, x, f, n, h, e = self.m, self.x, self.f, self.passed, self.m.hidden, self.e
        wide, columns, kept = self.device.wide, self.vocab / x.tp, 0.0 if x.train else 1.0
        elements = n * (self.vocab if f.gathered_logits else columns)
        embed = self.stream(n * h * e * (4 if self.drops else 2), 3)
        embed_back = kept * self.stream(n * h * (e * (3 if self.drops else 2) + 4), 3)
        row = ceil(m.vocab / x.tp) if f.odd_vocab else columns
        product = self.product(wide, n, columns, h, h)
        if f.gathered_logits and x.tp > 1:
            product += self.stream(2 * elements * e, 1)
        head = product + self.stream(elements * f.entropy_forward_bytes, 6)
        back = self.product(wide, n, h, columns, h, row) + kept * self.product(wide, columns, h, n, h, row)
        back += self.stream(elements * f.entropy_backward_bytes, 3)
        if f.recomputed_head and x.recompute == Recompute.FULL:
            back += product
        more, k = m.num_mtp_layers, x.sequence_slices
        joined, own = self.stream(10 * n * h * e, 4), self.device
        there = embed + joined + self.product(own, n, h / x.tp, 2 * h)
        again = embed_back + 2 * joined + self.product(own, n, 2 * h, h / x.tp)
        again += kept * self.product(own, h / x.tp, 2 * h, n)
        return {
            "embedding_forward_s": k * embed, "embedding_backward_s": k * embed_back,
            "head_forward_s": k * (1 + more) * head, "head_backward_s": k * (1 + more) * back,
            "module_forward_s": k * more * there, "module_backward_s": k * more * again,
        }  # fmt: skip

    def added(self, params: float, apart: bool) -> tuple[float, float, float]:
        """Adding a micro-batch's gradients to the sum: of a layer's parameters, the embedding's, the head's."""
        x, f = self.x, self.f
        own = f.bf16_accumulate_bytes if x.precision >= Precision.BF16 else f.accumulate_bytes
        most, least = max(f.accumulate_bytes, f.bf16_accumulate_bytes), min(f.accumulate_bytes, f.bf16_accumulate_bytes)
        moved = {0: own, int(GradDtype.FP32): max(own, most), int(GradDtype.BF16): min(own, least)}
        moved = moved[int(GradDtype.BF16 if x.main_dtype == MainDtype.BF16 else x.grad_dtype)]
        seconds = moved / (x.dp * x.cp // x.dp_replicate if x.zero >= 2 else 1) / self.rate
        seconds *= 1 - 1 / x.micro_batches
        table = 0.0 if x.train else self.vocab / x.tp * self.m.hidden * seconds
        return params * seconds, 0.0 if self.m.tied and not apart else table, table

    def update(self, own: Any, muon: float) -> float:
        """The optimizer's step of a rank's trained parameters."""
        x, f = self.x, self.f
        narrow = x.main_dtype == MainDtype.BF16
        wide, weights = (2.0, 6) if narrow else (4.0, 14)
        moments = {OptimizerKind.ADAM: 2 * wide, OptimizerKind.ADAM_BF16: 4.0, OptimizerKind.ADAM_8BIT: 2 + 8 / 256}
        is_muon = x.optimizer == OptimizerKind.MUON
        matrices = weights + 2 * moments.get(x.optimizer, wide) + (4 if is_muon else 0)
        ends = weights + 2 * (2 * wide if is_muon else moments.get(x.optimizer, wide))
        shards = x.dp * x.cp // x.dp_replicate
        replicas = max(max(x.tp * x.dp * x.cp // max(x.etp * x.ep, 1), 1) // x.dp_replicate, 1)

        def held(stage: int, dense: float, experts: float) -> float:
            return dense / shards + experts / replicas if x.zero >= stage else dense + experts

        moved = held(1, own.layers * matrices + own.ends * ends, own.experts * matrices)
        local, gradients = held(1, own.dense, own.experts), held(2, own.dense, own.experts)
        gradient = f.gradient_bytes if x.precision < Precision.BF16 else f.bf16_gradient_bytes
        gradient = {0: gradient, 1: max(gradient, 4.0), 2: min(gradient, 2.0)}[2 if narrow else int(x.grad_dtype)]
        clipped = (6 if narrow else 16) * local
        apart = f.apart_update_bytes * (x.optimizer == OptimizerKind.ADAM) * (0.5 if narrow else 1.0)
        here = (moved + clipped + apart * local) / self.rate + (muon if is_muon else 0.0)
        c = self.cluster
        there = moved / (0.5 * c.host_memory_bandwidth_bytes_per_s / c.gpus_per_node) + clipped / self.rate
        wide = x.precision <= Precision.TF32 or gradient >= 4
        waits = x.zero >= (f.host_fp32_gradients_zero if wide else f.host_gradients_zero)
        linked = gradient * (2 * x.micro_batches - 1 if waits and x.offload_optimizer else 1)
        away = x.offload_fraction if x.offload_optimizer else 0.0
        parameters = max(x.offload_parameters, away if f.one_sharded_copy else 0.0)
        over = away * linked + abs(away - parameters) * (4 if x.precision <= Precision.TF32 else 2)
        over_s = local * over / (c.host_link.bandwidth_bytes_per_s * c.host_link.fraction)
        kept = gradients * (1 - away * waits)
        return float((1 - away) * here + away * there + over_s + 3 * kept * gradient / self.rate + f.host_step_s)

    def tensors(self) -> dict[str, float]:
        """Bytes that a layer keeps where nothing is recomputed, tensor by tensor."""
        m, x, f, part, t = self.m, self.x, self.f, self.part, self.x.tp
        e, o, held, h = self.e, self.operand, self.tokens / self.shared, self.m.hidden
        eager = f.eager_norm_bytes if m.rms_norm and not x.fused_norm else 0.0
        keys = m.num_heads if self.latent else self.keys
        ring = x.cp / x.ulysses if f.gathered_context else 1
        kept = ring * (m.num_heads if f.sdpa_context and x.cp > x.ulysses else keys)
        normed = (m.num_heads + keys) * m.head_dim * (1 + eager / e) if m.qk_norm else 0.0
        heads = m.num_heads * m.head_dim + kept * (m.head_dim + self.value) + normed
        heads *= part.attention * self.tokens / t * e
        # Norms whose output fp8 products alone read keep it in fp8: all but the router's and latent attention's.
        read = (0 if self.latent else part.attention) + part.ssm + part.dense - (part.blocks - part.norms)
        attended = part.attention * self.tokens / t * m.num_heads * self.value
        wide, routed = self.inner()
        copies = held * (m.moe_latent or h) * part.sparse * self.copies / (t if x.dispatcher == 1 else 1)
        cut = x.etp if x.sequence_parallel else 1
        return {
            "norm_inputs": held * h * (part.sums * e + part.norms * eager + part.blocks * self.drops),
            "product_inputs": held * h * (read * o + (part.norms - read) * e),
            "latents": held * part.sparse * m.moe_latent * o
            + part.attention * self.tokens * e * (m.q_lora_rank + m.kv_lora_rank),
            "from_latents": heads if self.latent else 0.0, "heads": 0.0 if self.latent else heads,
            "attended": attended * e + (attended * o if x.ulysses > 1 or o < e else 0.0),
            "inner": self.tokens / t * (3 if m.gated else 1) * e * wide, "routed_inputs": self.tokens / t * o * routed,
            "other_inputs": self.tokens / t * o * (wide - routed),
            "clamped": 2 * self.tokens / t * e * wide if m.clamped else 0.0, "expert_inputs": copies * cut * o,
            "expert_outputs": copies * (cut if f.gathered_tokens else 1) * (4.0 if f.fp32_expert_outputs else e),
            "scans": self.asked.scans,
        }  # fmt: skip

    def saved(self) -> tuple[float, float]:
        """Bytes kept until the backward pass, and made again meanwhile."""
        x, f, told, core = self.x, self.f, self.tensors(), self.part.attention * self.asked.core
        if f.fused_experts or f.gate_tensors < 4:
            told["clamped"] = 0.0
        layer = sum(told.values()) - (0.0 if f.kept_expert_outputs else told["expert_outputs"])
        cheap = told["product_inputs"] + told["from_latents"] + told["routed_inputs"] + told["clamped"]
        flash, k = x.attention >= Attention.FLASH1, x.sequence_slices
        if x.recompute == Recompute.FULL:
            start = self.tokens * self.m.hidden * self.e / self.shared
            return start, (layer + core - start) / k
        if x.recompute == Recompute.SELECTIVE and f.selective_operations:
            stays = self.asked.stays + (0.0 if f.repeats_attention else core)
            return stays, (layer + core - stays) / k
        if x.recompute == Recompute.SELECTIVE and not flash:
            return layer, core / k
        dropped = cheap if x.recompute == Recompute.FINE else 0.0
        return layer + core - dropped, dropped / k
