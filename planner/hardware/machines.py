"""Accelerators, links and clusters as the cost models see them, in SI units. Each figure is declared here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from planner.base.errors import InputError
from planner.hardware.declared import FLASH, PRECISIONS, figure, setting, yes

UNLIMITED = 2**20
"""Accelerators of a node that is larger than any job."""

# fmt: off


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The part of its datasheet that a GPU architecture achieves, the same for every model.

    attention_kernels: those that the architecture runs, oldest first.
    """

    name: str
    attention_kernels: tuple[str, ...] = setting(tuple[Literal["unfused", "fused", "flash1", "flash2", "flash3"], ...],
        "The attention kernels that it runs.", default=("unfused", "fused", *FLASH))
    matrix_fraction: Mapping[str, float] = figure(
        1e-3, 1.25, "Share of peak that a large product reaches, by precision; more than 1 where the clock is above "
        "the datasheet's.", keys=PRECISIONS, kind="products")
    tile_rows: float = figure(1, 1024, "Rows of the output tile of the largest kernel.", whole=True)
    tile_columns: float = figure(1, 1024, "Columns of the output tile of the largest kernel.", whole=True)
    depth_half: float = figure(0, 1e5, "Inner dimension at which a product reaches half of that share.")
    kernel_latency_s: float = figure(0, 1e5, "Fixed time of one kernel.", unit="us", kind="host")
    expert_product_s: float = figure(
        0, 1e5, "Least time of one expert's product among a rank's, where the host launches them one by one, the casts "
        "of its operands among it.", unit="us", default=0.0, because="not measured", kind="host")
    wide_expert_product_s: float = figure(
        0, 1e5, "Least time of one expert's product in 16 bits, which needs no casts.", unit="us",
        like="expert_product_s", kind="host")
    memory_fraction: float = figure(
        1e-3, 1, "Share of memory bandwidth that a streaming kernel reaches.", kind="memory")
    memory_latency_s: float = figure(0, 1e3, "Time of one load from memory that waits for nothing else.", unit="us",
        default=0.0, because="not measured", kind="memory")
    permute_fraction: float = figure(
        1e-3, 1, "Share of memory bandwidth of the kernels that sort tokens by expert and back.",
        like="memory_fraction", kind="memory")
    flash_forward: Mapping[str, float] = figure(
        1e-3, 1, "Share of matrix peak that causal attention of long sequences reaches forward, by kernel.", keys=FLASH,
        kind="attention")
    flash_backward: Mapping[str, float] = figure(
        1e-3, 1, "Share of matrix peak that causal attention of long sequences reaches backward, by kernel.",
        keys=FLASH, beside="flash_forward", kind="attention")
    flash_half_tokens: Mapping[str, float] = figure(
        0, 1e5, "Sequence at which a flash kernel reaches half of its share.", keys=FLASH, needed=False)
    flash_keys: float | None = figure(
        1, 65536, "Keys of a flash kernel's block, computed whole at the diagonal, where they are more than 128.",
        needed=False)
    flash_tail_waves: Mapping[str, float] = figure(
        0, 10, "Waves of blocks more that a flash kernel takes, while its last blocks leave compute units idle.",
        keys=FLASH, needed=False)
    flash_head_step: float = figure(
        1, 256, "Channels in steps of which flash kernels are built; other heads compute as the next wider.",
        whole=True, default=1.0, because="heads compute at their own width")
    rate_spread: float = figure(
        0, 0.5, "Standard deviation of the matrix rate of GPUs of one kind (clocks, heat), relative to their mean.",
        default=0.0, because="not measured")
    unit_power_w: float | None = figure(
        0.01, 1e3, "Power of a compute unit of the part on which the shares of matrix peak were measured.",
        needed=False, beside="power_exponent")
    power_exponent: float | None = figure(
        0, 1,
        "How the share of matrix peak falls with the power of a compute unit, as an exponent, on parts with less.",
        needed=False, beside="unit_power_w")
    attention_matrix_fraction: float = figure(
        1e-3, 1, "Share of matrix peak of the batched products of unfused and fused-softmax attention.",
        kind="attention")
    scan_matrix_fraction: float = figure(
        1e-3, 1, "Share of matrix peak of a state-space's scan, with all that its kernels do beside the products.",
        like="attention_matrix_fraction", kind="attention")
    aligned_fraction: Mapping[str, float] = figure(1e-3, 1, "Share of its rate for a product whose operands' rows "
        "begin at multiples of so many bytes and no more; from 32 on, and where the table is left out, the whole.",
        keys=("bytes_16", "bytes_4", "bytes_2"), every=True, needed=False)
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One accelerator: dense FLOP/s by precision, never the sparsity figure; memory; its architecture's efficiency."""

    name: str
    efficiency: Efficiency
    peak_flops: Mapping[str, float] = figure(1e-4, 1e5, "Dense FLOP/s, by precision.", unit="tflops", keys=PRECISIONS)
    num_compute_units: int = figure(1, 1e5, "Compute units.", whole=True)
    memory_bytes: float = figure(0.1, 1e4, "Memory.", unit="gib")
    memory_bandwidth_bytes_per_s: float = figure(1, 1e5, "Bandwidth of memory.", unit="gbyte_per_s")
    power_w: float = figure(1, 1e4, "Power.")
    price_per_hour: float | None = figure(0, 1e4, "Price of an hour, USD.", unit="usd_per_hour", needed=False)
    sources: Mapping[str, str]
    room_bytes: float | None = None
    """Bytes that a layout may be predicted to take of the memory, where that is less than all of it."""

    @property
    def usable_bytes(self) -> float:
        """Predicted peak memory up to which a layout fits."""
        return self.memory_bytes if self.room_bytes is None else min(self.memory_bytes, self.room_bytes)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link, per direction: per accelerator inside a node, per NIC on a network."""

    name: str
    kind: str = setting(Annotated[str, "nvlink|pcie|infiniband|omni-path|ethernet|memory"], "Its kind.")
    bandwidth_bytes_per_s: float = figure(
        0.01, 1e5, "Bandwidth: GB/s of an accelerator inside a node, Gb/s of a NIC on a network.",
        unit=("gbyte_per_s", "gbit_per_s"))
    latency_s: float = figure(
        0, 1e5, "One step between neighbours of a ring, or a launch, software included.", unit="us", kind="link")
    ring_step_s: float = figure(
        0, 1e5, "One step of a ring through several nodes, or of the protocol for small messages inside one.",
        unit="us", like="latency_s", kind="link")
    fraction: float = figure(1e-3, 1, "Share of bandwidth that rings of large messages reach.", kind="link")
    send_fraction: float = figure(1e-3, 1, "Share of bandwidth that a send between two reaches.", kind="link")
    exchange_share: float = figure(1e-3, 1, "Share of a send's rate through a network that an all-to-all of a training "
        "step gets.", default=1.0, because="all of it", kind="link")
    gather_passes: float = figure(
        1, 4, "Passes round a ring that an all-gather takes: more where the library copies what it gathers.",
        default=1.0, because="a ring's, as NCCL's")
    scatter_passes: float = figure(
        1, 4, "Passes round a ring that a reduce-scatter takes: 2 where the library sums all on every rank, more where "
        "it copies too.", default=1.0, because="a ring's, as NCCL's")
    sources: Mapping[str, str]
    bridge_fraction: float | None = figure(1e-3, 100, "What all that passes between the two halves of a node shares, "
        "over one accelerator's bandwidth, where accelerators hang on two host bridges.", needed=False, kind="link")
    bridge_flows: float = figure(
        0, 100,
        "Flows between the two halves, of many rings or sends at once, that together reach half of bridge_fraction.",
        default=0.0, because="one ring gets all of it", kind="link")
    small_latency_s: float | None = figure(0, 1e5, "Launch of the protocol for small messages, where it is known.",
        unit="us", needed=False, beside="small_fraction", kind="link")
    small_fraction: float | None = figure(1e-3, 1, "Share of bandwidth that the protocol for small messages reaches.",
        needed=False, beside="small_latency_us", kind="link")
    sum_latency_s: float | None = figure(0, 1e5, "Launch of a sum by the switches (NVLS), where they make it.",
        unit="us", needed=False, beside="sum_fraction")
    sum_fraction: float | None = figure(
        1e-3, 1, "Share of bandwidth at which switches sum what every accelerator sends and receives once.",
        needed=False, beside="sum_latency_us")
    direct: bool = yes("Each two accelerators of a node have links of their own, all alike, and no switch: a group has "
        "those between its members only.", because="a switch, or a bus, joins them all")
    partial_fraction: float | None = figure(
        1e-3, 1, "Share of bandwidth that rings of more than half of a node's accelerators reach, but not of all, "
        "where no switch joins them and the library's rings do not match.", needed=False, kind="link")
    device_sends: bool = yes("GPUs start their own sends over the network, as DeepEP does; else hosts do it for them.",
        default=True, because="NVSHMEM's GPU-initiated transport of InfiniBand and RoCE")

    stretched: float | None = None
    """Its latency over its profile's, at which all that is fitted was fitted, where it is longer."""

    @property
    def reached_bytes_per_s(self) -> float:
        """Bytes per second, each way, that large messages reach."""
        return self.bandwidth_bytes_per_s * self.fraction

    def faster(self, factor: float) -> Link:
        """The link with so many times its bandwidth."""
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * factor)

    def later(self, factor: float) -> Link:
        """The link with so many times each of its latencies."""
        small = None if self.small_latency_s is None else self.small_latency_s * factor
        return replace(
            self, latency_s=self.latency_s * factor, ring_step_s=self.ring_step_s * factor, small_latency_s=small
        )

    def stretched_by(self, factor: float) -> Link:
        """A profile's link with so many times each of its latencies, which says so where they are longer."""
        return replace(self.later(factor), stretched=factor if factor > 1.0 else None)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes of one accelerator: links inside a node, a network between nodes.

    framework: the profile assumed where none is chosen, the usual one of the hardware's years. own_file: its path.
    """

    name: str
    accelerator: Accelerator
    node_link: Link
    network: Link
    host_link: Link
    gpus_per_node: int = figure(1, 1e7, "Accelerators that share the fast link (the NVLink domain).", whole=True)
    gpus_per_host: int = figure(1, 1e7, "Accelerators of a host, which a launcher starts processes on: fewer than a "
        "node's where the fast link joins several hosts.", whole=True, like="gpus_per_node")
    nics_per_node: int = figure(1, 1e7, "NICs of a node.", whole=True)
    pod_nodes: int = figure(1, 1e6, "Nodes of a pod, which reach each other at full bandwidth: under one leaf, on one "
        "set of rails, in one group of a dragonfly.", whole=True, default=1, because="each node on its own")
    oversubscription: float = figure(1, 1000, "Bandwidth of a pod's nodes over that of its links to other pods.",
        default=1.0, because="a fabric that holds nothing up")
    neighbour_flows: int = figure(0, 1e7, "Flows of other jobs on each pod's links to other pods, such as one of each "
        "of their NICs.", whole=True, default=0, because="one job alone")
    neighbour_bandwidth_bytes_per_s: float = figure(0, 1e6, "What each neighbour's flow would send if nothing held it "
        "up.", unit="gbit_per_s", default=400.0, because="one NIC of NDR, all the time")
    storage_bandwidth_bytes_per_s: float = figure(1e-3, 1e5, "Bandwidth of a node to storage.", unit="gbyte_per_s",
        default=0.15, each="gpus_per_node", because="as BLOOM's checkpoints were written on Jean Zay: 2.3 TB in about "
        "40 s by 384 GPUs (BigScience, github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/README.md), 0.15 "
        "GB/s per GPU; not measured on this machine")
    max_gpus: int | None = figure(1, 1e7, "Accelerators in all.", whole=True, needed=False)
    framework: str
    host_memory_bandwidth_bytes_per_s: float = figure(
        0.1, 1e6,
        "Bandwidth of a node's host memory, which its GPUs' processes share where they update offloaded states.",
        unit="gbyte_per_s", default=409.6, because="two sockets of eight channels of DDR4-3200")
    host_memory_bytes: float | None = figure(
        0.1, 1e6, "Memory of a node's host, for offloaded states; not checked where it isn't stated.", unit="gib",
        needed=False)
    host_pace: float = figure(0.1, 10, "Times as long as on DGX H100 that the host takes to launch.", default=1.0,
        because="none measured", kind="host")
    site_factor: float | None = figure(1, 10, "Facility watts per GPU watt, where the machine's own are known.",
        needed=False)
    sources: Mapping[str, str]
    framework_figures: Mapping[str, float] = field(default_factory=dict)
    own_file: str | None = field(default=None, compare=False)
    traffic_shares: Mapping[str, float] = field(default_factory=dict)
    """What each kind of traffic gets of the network's bandwidth, where links differ (`planner.search.placed`)."""

    def of_traffic(self, kind: str) -> Cluster:
        """The cluster whose network is as fast as it is for one kind of traffic: a group's name, or pipeline."""
        share = self.traffic_shares.get(kind, 1.0)
        return self if share == 1.0 else replace(self, network=self.network.faster(share))

    @property
    def nvlink_gpus(self) -> int:
        """GPUs of a node that NVLink joins, 1 where none does. AMD's xGMI, a link of the same kind, is another."""
        joined = self.node_link.kind == "nvlink" and not self.node_link.name.startswith("xgmi")
        return self.gpus_per_node if joined else 1

    def check_gpus(self, name: str, gpus: int) -> None:
        """Raises InputError if there are not so many accelerators; name: of what asks for them."""
        if self.max_gpus is not None and gpus > self.max_gpus:
            raise InputError(f"{name} is {gpus}; allowed: up to the {self.max_gpus} of cluster {self.name}")

    def with_node_size(self, gpus: int) -> Cluster:
        """The same accelerators in nodes of another size, 0 for unlimited; network, storage and host keep their share.
        A larger node joins more hosts, a smaller one is a smaller host.

        Raises InputError for a negative or impossible size.
        """
        if not 0 <= gpus <= UNLIMITED:
            raise InputError(f"--node-size is {gpus}; allowed: 0 (unlimited) to {UNLIMITED}")
        size = gpus or UNLIMITED
        nics, host = size * self.nics_per_node / self.gpus_per_node, self.host_memory_bytes
        pod = max(round(self.pod_nodes * self.gpus_per_node / size), 1)
        # Whole cards only: what rounding changes in their number, it changes back in the bandwidth of one.
        cards = max(round(nics), 1)
        each = self.network.bandwidth_bytes_per_s * nics / cards
        return replace(
            self, name=f"{self.name}, nodes of {gpus or 'any number of'} GPUs", gpus_per_node=size, nics_per_node=cards,
            gpus_per_host=min(self.gpus_per_host, size), pod_nodes=pod,
            network=replace(self.network, bandwidth_bytes_per_s=each),
            storage_bandwidth_bytes_per_s=self.storage_bandwidth_bytes_per_s * size / self.gpus_per_node,
            host_memory_bytes=None if host is None else host * size / self.gpus_per_node,
        )
# fmt: on
