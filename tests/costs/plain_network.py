"""Communication told once more for one layout, in plain numbers, beside `planner.costs.network`.

Arrays, broadcasting and what is left out where no layout has it are planner's; here each collective is a sentence.
"""

from __future__ import annotations

from math import ceil, comb, gcd, inf, log2
from types import SimpleNamespace
from typing import Any

from planner.layouts import Dispatcher, GradDtype, MainDtype, OptimizerKind, Precision, Recompute

CHOICES = (
    "dp", "tp", "pp", "cp", "ep", "etp", "ulysses", "inner_ring", "sequence_slices", "micro_batch", "zero",
    "dp_replicate", "sequence_parallel", "recompute", "precision", "expert_imbalance", "capacity_factor",
    "optimizer", "main_dtype", "grad_dtype", "grad_reduce_dtype", "train", "offload_optimizer", "offload_fraction",
    "offload_parameters",
)  # fmt: skip


def beside_neighbours(cluster: Any, links: float, flows: int) -> float:
    """Bytes/s of a pod's links that so many flows get, by filling: all grow alike until they stop or the links do."""
    asked = cluster.neighbour_bandwidth_bytes_per_s
    free = flows + cluster.neighbour_flows
    if cluster.neighbour_flows and free * asked < links:
        links, free = links - cluster.neighbour_flows * asked, flows
    return links / free * flows


class Ring:
    """A group of ranks at a stride, and the seconds of its collectives."""

    def __init__(self, cluster: Any, startup_s: float, gpus: int, ranks: int, stride: int) -> None:
        node, link, wire = cluster.gpus_per_node, cluster.node_link, cluster.network
        each = gpus
        if gpus > node:
            each = max((d for d in range(node // 2 + 1, node + 1) if gpus % d == 0), default=node)
        self.ranks, self.local = ranks, gcd(ranks, max(each // stride, 1))
        self.nodes = ceil(ranks / self.local)
        inside = link.bandwidth_bytes_per_s * link.fraction
        self.inside_send = link.bandwidth_bytes_per_s * link.send_fraction
        self.links = 1
        if link.direct and self.local > 1:
            self.links = self.local - 1
            inside, self.inside_send = (x * self.links / (node - 1) for x in (inside, self.inside_send))
            if link.partial_fraction is not None and node / 2 < self.local < node:
                inside = link.bandwidth_bytes_per_s * link.partial_fraction
        elif link.bridge_fraction is not None and self.local > 1 and self.local * min(stride, node) > node / 2:
            between = link.bandwidth_bytes_per_s * link.bridge_fraction
            rings, sends = node / self.local, node * self.local / 4.0
            inside = min(inside, between / rings * (rings / (rings + link.bridge_flows)))
            busy = sends / (sends + link.bridge_flows)
            self.inside_send = min(self.inside_send, busy * between * 4.0 * (self.local - 1) / (node * self.local))
        nic = wire.bandwidth_bytes_per_s * cluster.nics_per_node / node
        self.outside_send = nic * wire.send_fraction
        self.inside, self.through = inside, min(inside, nic * wire.fraction * self.local)
        self.outside_shift = self.outside_send
        pod, block = cluster.pod_nodes * each, ranks * stride
        if cluster.oversubscription > 1 and pod < gpus and pod % block:
            links = pod * nic / cluster.oversubscription
            groups, held = min(stride, pod), min(pod / stride, ranks)
            if block < gpus and block % pod:  # where one block ends and the next begins, half of the groups of both
                groups, held = 2 * groups, held / 2
            rings = beside_neighbours(cluster, links, groups * self.local)
            self.through = min(self.through, rings / groups * wire.fraction)
            self.outside_shift = min(self.outside_shift, rings / groups * wire.send_fraction)
            leave = min(pod, block) * (ranks - held) / max(ranks - self.local, 1)
            sends = beside_neighbours(cluster, links, min(pod, block))
            self.outside_send = min(self.outside_send, sends / leave * wire.send_fraction)
        self.start_s = self.local * link.latency_s
        self.tree_s = log2(self.nodes) * (wire.latency_s + startup_s)
        self.ring_s = (self.nodes - 1) * ((self.local - 1) * link.ring_step_s + wire.ring_step_s + startup_s)
        self.small = None
        if link.small_fraction and self.nodes == 1:
            start = (link.small_latency_s or 0.0) + (self.local - 1) * link.ring_step_s
            self.small = (start, inside * link.small_fraction / link.fraction)
        self.sums = None
        if link.sum_fraction and self.nodes == 1:
            self.sums = (link.sum_latency_s or 0.0, link.bandwidth_bytes_per_s * link.sum_fraction)
        ring = wire if self.nodes > 1 else link
        self.gathers, self.scatters = ring.gather_passes, ring.scatter_passes

    def one_pass(self, size: float, more_s: float, share: float | None = None) -> float:
        """One pass around the ring; share: what that of a node's links, and the ring's steps, take from compute."""
        if self.ranks == 1:
            return 0.0
        moved = size * (self.ranks - 1) / self.ranks
        slowest = self.through if self.ranks > self.local else self.inside
        seconds = moved / slowest + more_s + self.start_s if share is None else share * moved / self.inside + more_s
        return min(seconds, moved / self.small[1] + self.small[0]) if self.small else seconds

    def gather(self, size: float, share: float | None = None) -> float:
        return self.gathers * self.one_pass(size, self.ring_s, share)

    def scatter(self, size: float, share: float | None = None) -> float:
        return self.scatters * self.one_pass(size, self.ring_s, share)

    def reduce(self, size: float, share: float | None = None) -> float:
        rings = 2.0 * self.one_pass(size, self.tree_s, share)
        return min(rings, size / self.sums[1] + self.sums[0]) if self.sums else rings

    def sends(self, inside: float, outside: float) -> float:
        if self.ranks == 1:
            return 0.0
        return max(inside / self.inside_send, outside / self.outside_send) + self.start_s + self.tree_s

    def exchange(self, size: float) -> float:
        """An all-to-all."""
        beyond = self.ranks - self.local
        return self.sends(size * (self.local - 1) / self.ranks, size * beyond / self.ranks)

    def shift(self, size: float) -> float:
        slower = self.outside_send / self.outside_shift
        return self.sends(0.0, size * slower) if self.ranks > self.local else self.sends(size * self.links, 0.0)

    def around(self, size: float) -> float:
        """Parts sent on from one to the next: of a node one at a time sends to another node, by its own NIC at most."""
        if self.ranks == self.local:
            return self.one_pass(size, self.ring_s)
        slowest = min(self.through, self.outside_shift)
        return size * (self.ranks - 1) / self.ranks / slowest + self.start_s + self.ring_s

    def dispatch(self, size: float, ranks: float, nodes: float, kernel: float) -> float:
        inside, outside = size * ranks * (self.local - 1) / self.local, size * nodes * (self.nodes - 1) / self.nodes
        alone = size * ranks / kernel if self.nodes == 1 and self.ranks > 1 else 0.0
        return max(self.sends(inside, outside), alone)


def rings(cluster: Any, startup_s: float, x: Any) -> dict[str, Ring]:
    """The groups of a layout."""
    gpus, copies, shards = x.dp * x.tp * x.pp * x.cp, x.dp_replicate, x.dp * x.cp // x.dp_replicate
    expert = x.etp * x.ep
    replicas = max(x.tp * x.dp * x.cp // (expert * copies), 1)
    sizes = {
        "tensor": (x.tp, 1), "ulysses": (x.ulysses, x.tp), "context": (max(x.cp // x.ulysses, 1), x.tp * x.ulysses),
        "inner": (x.inner_ring, x.tp * x.ulysses),
        "outer": (x.cp // (x.ulysses * x.inner_ring), x.tp * x.ulysses * x.inner_ring),
        "data": (shards, x.tp), "replica": (copies, x.tp * shards), "expert": (x.ep, x.etp),
        "expert_data": (replicas, expert), "expert_replica": (copies, expert * replicas),
    }  # fmt: skip
    return {name: Ring(cluster, startup_s, gpus, n, stride) for name, (n, stride) in sizes.items()}


def reached(model: Any, units: int) -> float:
    """Of so many ranks or nodes, how many a token reaches on average: every way to choose groups is drawn up."""
    groups, chosen, k = model.expert_groups, model.top_k_groups, model.top_k
    if not groups:
        return units * (1 - (1 - 1 / units) ** k)
    if units >= groups:
        each = units * chosen / groups
        return each * (1 - (1 - 1 / each) ** k)
    held = round(groups / units)
    total = comb(groups, chosen)
    hit = 0.0
    for j in range(chosen + 1):
        ways = comb(held, j) * comb(groups - held, chosen - j)
        hit += ways / total * (1 - (1 - j / chosen) ** k)
    return units * hit


class Told:
    """One layout of a case: a model's shares of a layer, a framework, the bytes of its formats."""

    def __init__(self, case: Any, x: Any, shares: Any, adapters: tuple[float, float], dispatcher: int) -> None:
        self.case, self.x, self.m, self.f, self.part = case, x, case.model, case.framework, shares
        self.more, self.dispatcher = adapters, dispatcher
        self.by = rings(case.cluster, self.f.network_startup_s, x)
        self.e = 4.0 if x.precision in (Precision.FP32, Precision.TF32) else 2.0
        self.operand = {Precision.FP8: 1.0, Precision.NVFP4: 0.5625}.get(x.precision, self.e)
        self.tokens = x.micro_batch * self.m.seq_len / x.cp / x.sequence_slices
        self.full, self.some = x.recompute == Recompute.FULL, x.recompute == Recompute.SELECTIVE
        self.by_operation = self.some and self.f.selective_operations
        block = 128 * x.tp
        self.vocab = ceil(self.m.vocab / block) * block
        self.latent = self.m.kv_lora_rank > 0
        self.in_layers = x.zero == 3 or (x.zero == 2 and self.f.zero2_by_layer)
        self.shards = x.dp * x.cp // x.dp_replicate

    def format_bytes(self) -> tuple[float, float, float]:
        """Of a parameter, of a layer's parameter, of a gradient that is summed."""
        x, f = self.x, self.f
        parameter = 4.0 if self.e == 4.0 else 2.0
        layers = f.fp8_parameter_bytes if x.precision == Precision.FP8 and x.zero > 0 else parameter
        if self.e == 4.0:
            return parameter, layers, 4.0
        own = f.bf16_scattered_bytes if self.in_layers else f.bf16_grad_reduce_bytes
        own = f.grad_reduce_bytes if x.precision == Precision.FP16 else own
        if x.main_dtype == MainDtype.BF16 and not f.reduces_by_policy:
            own = min(own, 2.0)
        stated = x.grad_reduce_dtype or x.grad_dtype
        summed = {0: own, int(GradDtype.FP32): max(own, 4.0), int(GradDtype.BF16): min(own, 2.0)}[int(stated)]
        return parameter, layers, summed

    def tensor(self) -> tuple[float, float]:
        """Collectives of the tensor ranks in a layer."""
        x, f, part, ring, k = self.x, self.f, self.part, self.by["tensor"], self.x.sequence_slices
        sp, size = x.sequence_parallel, self.tokens * self.m.hidden * self.e
        small = size * self.operand / self.e
        shares = 0.0 if sp or (x.etp < x.tp and self.dispatcher != Dispatcher.PPMOE) else 1.0
        shared = part.sparse * (shares + (self.m.num_shared_experts > 0) - 1)
        into, out = part.norms + shared, part.sums + shared
        apart = f.apart_inputs * (2 * part.attention + self.m.gated * part.dense)
        gathered, summed = into + (0 if f.compiled_layers else apart), into + apart
        if not sp:
            one = k * ring.reduce(size)
            forward, backward = out * one, summed * one
            again = forward if self.full or self.by_operation else 0.0
            again += f.gate_reduces * self.m.gated * (part.dense + part.sparse) * one
        else:
            gather, scatter = k * ring.gather(small), k * ring.scatter(size)
            if f.copied_sequences and x.tp > 1 and x.micro_batch > 1:
                gather, scatter = gather + self.stream(2 * small), scatter + self.stream(2 * size)
            forward, backward = gathered * gather + out * scatter, out * gather + summed * scatter
            again = forward if self.full else gathered * (gather + scatter) / 2 if self.by_operation else 0.0
            if x.precision == Precision.NVFP4 and not x.train:
                backward += out * k * ring.gather(small)
        whole = k * ring.gather(size)
        back = self.more[1] + (self.more[0] if self.full else 0.0)
        return forward + self.more[0] * whole, backward + again + back * whole

    def stream(self, size: float) -> float:
        """Seconds of one kernel that moves so many bytes of memory."""
        chip = self.case.device.accelerator
        rate = chip.memory_bandwidth_bytes_per_s * chip.efficiency.memory_fraction
        return float(size / rate + chip.efficiency.kernel_latency_s)

    def context(self, gathers: bool = False) -> tuple[float, float]:
        """Keys and values around the ring; gathers: in a collective instead."""
        x, m, f = self.x, self.m, self.f
        ring, inner, outer = (self.by[name] for name in ("context", "inner", "outer"))
        torch = f.sdpa_context
        heads = m.num_heads if self.latent else max(m.num_heads if torch else m.num_kv_heads, x.tp)
        channels = m.head_dim + (m.v_head_dim if self.latent else m.head_dim)
        elements = x.micro_batch * m.seq_len * heads * channels / x.tp / x.ulysses
        size = elements * self.e
        if torch or f.gathered_context or gathers:
            once = ring.gather(size)
        else:
            turns = outer.ranks * inner.around(size / outer.ranks)
            once = max(turns, outer.around(size / inner.ranks))
        once *= self.part.attention
        again = self.full or self.some
        if torch:
            times = 2 if again and not self.by_operation else 1
            return once, times * once + self.part.attention * ring.ranks * ring.shift(elements * 4.0 / ring.ranks)
        return once, once * (2 + again - f.gathered_context)

    def exchanged(self) -> tuple[float, float]:
        """Heads for tokens, queries, keys, values and the output one by one."""
        x, m, ring = self.x, self.m, self.by["ulysses"]
        width = m.v_head_dim if self.latent else m.head_dim
        keys = m.num_heads if self.latent else max(m.num_kv_heads, x.tp)
        tokens = x.micro_batch * m.seq_len / x.cp / x.tp * self.e
        queries = (m.num_heads * m.head_dim, keys * m.head_dim, keys * width, m.num_heads * width)
        once = self.part.attention * (ring.exchange(tokens * sum(queries)) + 3 * ring.exchange(0.0))
        return once, once * (2 if self.full or self.some else 1)

    def experts(self) -> tuple[float, float]:
        """Tokens to their experts, and back; before them their counts, beside them their weights."""
        x, m, ring = self.x, self.m, self.by["expert"]
        told = weights = 0.0
        size = self.tokens * (m.moe_latent or m.hidden) / x.tp * self.e
        if self.dispatcher == Dispatcher.PPMOE:
            one = 0.0
        elif self.dispatcher in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP):
            kernel = self.f.deepep_bytes_per_s if self.dispatcher == Dispatcher.DEEPEP else inf
            one = ring.dispatch(size, reached(m, ring.ranks), reached(m, ring.nodes), kernel)
        else:
            one = ring.exchange(size * m.top_k)
            nothing = self.part.sparse * x.sequence_slices * ring.exchange(0.0)
            told, weights = 0.0 if x.capacity_factor else nothing, 0.0 if self.f.kept_expert_outputs else nothing
        if x.sequence_parallel and x.etp == x.tp:
            one += self.by["tensor"].gather(size * x.tp * m.top_k)
        busiest = min(x.expert_imbalance, x.capacity_factor or inf)
        once = 2 * busiest * self.part.sparse * x.sequence_slices * one
        return once + told + weights, once + weights + (once + told + weights if self.full else 0.0)

    def ends(self) -> tuple[float, float]:
        """Of embedding, head and loss, and of gathered logits."""
        ring, heads, k = self.by["tensor"], 1 + self.m.num_mtp_layers, self.x.sequence_slices
        hidden = self.tokens * self.m.hidden * self.e
        logits = ring.gather(self.tokens * self.vocab * self.e) if self.f.gathered_logits else 0.0
        return k * heads * (2 * ring.reduce(hidden) + 3 * ring.reduce(self.tokens * 4)), k * heads * logits

    def over(self, ring: str, kind: str, size: tuple[float, float], share: float | None = None) -> float:
        """A collective of dense parameters' bytes, and of experts' in their own groups, at the pace of many nodes."""
        dense, experts = size
        seconds = getattr(self.by[ring], kind)(dense, share)
        return float(seconds + (getattr(self.by[f"expert_{ring}"], kind)(experts, share) if experts else 0.0))

    def pace(self) -> float:
        """Of the bandwidth, what sharded collectives get in jobs of many nodes."""
        c, x = self.case.cluster, self.x
        least = min(c.network.send_fraction / c.network.fraction / c.nics_per_node, 1.0)
        nodes = ceil(x.dp * x.tp * x.pp * x.cp / c.gpus_per_node)
        return min(max(self.f.sharded_nodes / nodes, least), 1.0) if x.zero >= self.f.sharded_stage else 1.0

    def summed(self, kind: str, own: Any, share: float | None = None) -> float:
        """Gradients, over the ranks that share them and then over the copies."""
        g = self.format_bytes()[2]
        seconds = self.over("data", kind, (own.dense * g, own.experts * g), share) / (
            self.pace() if share is None else 1.0
        )
        x = self.x
        if x.dp_replicate > 1:
            replicas = max(max(x.tp * x.dp * x.cp // max(x.etp * x.ep, 1), 1) // x.dp_replicate, 1)
            part = (own.dense / self.shards * g, own.experts / replicas * g)
            seconds += self.over("replica", "reduce", part, share)
        return seconds

    def layer(self, own: Any, moves: Any) -> SimpleNamespace:
        """A layer's own collectives of parameters and gradients, its copies, and those of the ends."""
        x, m, f = self.x, self.m, self.f
        parameter, of_layer, summed = self.format_bytes()
        if not self.in_layers:
            names = ("gather", "reduce", "gather_taken", "reduce_taken", "out", "into", "ends", "ends_reduce")
            return SimpleNamespace(**dict.fromkeys(names, 0.0))
        size = own.dense * of_layer, own.experts * of_layer
        chip = self.case.device.accelerator
        rate = chip.memory_bandwidth_bytes_per_s * chip.efficiency.memory_fraction
        out, into = 2 * of_layer * f.flat_copies, (parameter + summed) * f.flat_copies
        if f.flat_gradients:
            into += 2 * parameter + 2 * summed + (parameter + summed if summed > parameter else 0)
        out, into = ((self.shards > 1) * moved / rate for moved in (out, into))
        table = self.vocab / x.tp * m.hidden * (1 if m.tied and x.pp == 1 else 2)
        times, kept = 2 if f.ends_gathered_twice and x.zero == 3 else 1, 0 if x.train else 1
        tables = SimpleNamespace(dense=table * kept, experts=0.0)
        ends = times * self.over("data", "gather", (table * parameter, 0.0)) / self.pace()
        once = f.defers_scatter and x.pp == 1 and self.shards > 1
        last = 1 / x.micro_batches if once else 1.0
        ends_reduce = self.summed("scatter", tables) + table * kept * into
        ends += last * ends_reduce + table * times * out
        away = max(x.offload_parameters, x.offload_fraction if x.offload_optimizer and f.one_sharded_copy else 0.0)
        host = self.case.cluster.host_link
        away_s = away / (host.bandwidth_bytes_per_s * host.fraction)
        wide = f.one_sharded_copy and x.precision > Precision.TF32 and x.main_dtype == MainDtype.FP32
        replicas = max(max(x.tp * x.dp * x.cp // max(x.etp * x.ep, 1), 1) // x.dp_replicate, 1)
        come = (own.dense / self.shards + own.experts / replicas) * (4 if wide else of_layer) * away_s
        ends += times * table / self.shards * (4 if wide else parameter) * away_s
        return SimpleNamespace(
            gather=self.over("data", "gather", size) / self.pace() + come, reduce=self.summed("scatter", moves),
            gather_taken=self.over("data", "gather", size, 1 - f.overlap_param_gather),
            reduce_taken=self.summed("scatter", moves, 1 - f.overlap_param_gather),
            out=own.total * out, into=moves.total * into, ends=ends, ends_reduce=ends_reduce,
        )  # fmt: skip

    def step(self, own: Any, copies: int) -> tuple[float, float, float]:
        """A step's reduction, its gather, and what that takes from compute; own: trained parameters of a rank."""
        x, f = self.x, self.f
        if self.in_layers:
            return 0.0, 0.0, 0.0
        several = SimpleNamespace(dense=copies * own.dense, experts=copies * own.experts)
        whole = x.zero == 0 or x.zero <= f.whole_reduces or (x.zero == 1 and x.optimizer == OptimizerKind.MUON)
        reduce = self.summed("reduce" if whole else "scatter", several)
        parameter, of_layer, _ = self.format_bytes()
        if f.reduce_bucket_bytes and x.zero == 0:
            buckets = ceil(copies * own.total * parameter / f.reduce_bucket_bytes)
            reduce += (buckets - 1) * self.by["data"].reduce(0.0)
        if x.zero not in (1, 2):
            return reduce, 0.0, 0.0
        size = copies * (own.layers * of_layer + own.ends * parameter), copies * own.experts * of_layer
        share = 1 - f.overlap_param_gather
        return reduce, self.over("data", "gather", size) / self.pace(), self.over("data", "gather", size, share)

    def hop(self, size: float) -> float:
        """From each rank of a stage to its like on another."""
        x, c = self.x, self.case.cluster
        if x.pp == 1:
            return 0.0
        stride = x.tp * x.cp * x.dp
        gpus, node = stride * x.pp, c.gpus_per_node
        each = gpus
        if gpus > node:
            each = max((d for d in range(node // 2 + 1, node + 1) if gpus % d == 0), default=node)
        if gpus <= each:
            rate = c.node_link.bandwidth_bytes_per_s * c.node_link.send_fraction
            return size / (rate / (node - 1) if c.node_link.direct else rate) + c.node_link.latency_s
        share = max(min(c.nics_per_node / min(stride, each), 1.0), c.nics_per_node / node)
        if c.oversubscription > 1 and gpus > c.pod_nodes * each:
            senders = min(stride, c.pod_nodes * each)
            links = c.pod_nodes * c.nics_per_node * c.network.bandwidth_bytes_per_s / c.oversubscription
            left = beside_neighbours(c, links, senders) / c.network.bandwidth_bytes_per_s
            share = min(share, left / senders)
        rate = c.network.bandwidth_bytes_per_s * c.network.send_fraction * share
        return size / rate + c.network.latency_s + self.f.network_startup_s

    def sent(self) -> tuple[float, float]:
        """A micro-batch to the next stage, and the sum of a table that two stages hold."""
        x, size = self.x, self.tokens * self.m.hidden * self.e
        mask = self.f.sent_mask_bytes * self.m.seq_len * self.m.seq_len / 2  # in one of two directions
        share = self.f.whole_sends
        cut, uncut = size / x.tp, size / x.tp if x.sequence_parallel else size
        one = self.hop((1 - share) * cut + share * uncut + mask)
        if share < 1 and x.pp > 1 and not x.sequence_parallel:
            one += self.by["tensor"].gather(size)
        tied = (self.m.tied or self.m.num_mtp_layers > 0) and x.pp > 1 and not x.train
        table = self.vocab / x.tp * self.m.hidden * self.format_bytes()[2]
        return self.f.send_turns * x.sequence_slices * one, 2 * self.hop(table / 2) if tied else 0.0
