"""Our seconds of single kernels beside measured ones, kernel by kernel: products, experts' grouped products, attention.

    python benchmarks/kernels.py [--all]

`simumax_kernels.csv` holds what MooreThreads/SimuMax (Apache-2.0, commit 4dcaae5, configs/system) measured on one B200
and one A100-PCIe. Attention is causal there and its FLOP are counted of the whole matrix: 1.17 of the peak at 32,768
tokens. The logarithm of measured over ours is averaged by kind and smallest side; --all prints every kernel.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from planner.costs.case import Case
from planner.costs.kernels.attention import attention_s
from planner.costs.kernels.device import Device, group_s, matmul_s
from planner.hardware import Cluster, load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import from_shape
from planner.setup import Setup

CLUSTERS = {"b200": "dgx-b200", "a100-pcie": "a100-pcie"}
KERNELS = {"b200": Attention.FLASH3, "a100-pcie": Attention.FLASH2}


def side(*sizes: int) -> str:
    """The class of a product: its smallest side."""
    least = min(sizes)
    return next((f"side below {limit:,}" for limit in (1024, 4096) if least < limit), "sides from 4,096")


def attention_case(
    cluster: Cluster, kernel: Attention, *, tokens: int, heads: int, kv_heads: int, width: int, sequences: int = 1
) -> Case:
    """A layer's causal attention alone in bf16: so many sequences, heads of so many channels."""
    model = from_shape(
        family="llama", layers=1, hidden=heads * width, ffn=4 * heads * width, heads=heads, kv_heads=kv_heads,
        vocab=1024, seq_len=tokens,
    )  # fmt: skip
    layouts = Layouts.of(micro_batch=sequences, global_batch=sequences, precision=Precision.BF16, attention=kernel)
    return Case.of(Setup(model, cluster, load_framework(cluster.framework)), layouts)


def ours(gpu: str, op: str, shape: dict[str, str]) -> tuple[float, float, str]:
    """FLOP as the table counts them, our seconds, and the class of a kernel."""
    cluster = load_cluster(CLUSTERS[gpu])
    device = Device.of(cluster.accelerator, np.array([Precision.BF16]))
    if op == "matmul":
        m, k, n = (int(shape[x]) for x in "mkn")
        return 2.0 * m * k * n, float(matmul_s(device, m, n, k)[0]), f"{shape['layout']}, {side(m, k, n)}"
    if op == "group_matmul":
        groups, m, n, k = (int(shape[x]) for x in ("ng", "M", "N", "K"))
        sizes = {"fwd": (m, n, k), "bwd_grad_act": (m, k, n), "bwd_grad_w": (k, n, m)}[shape["stage"]]
        # A weight's gradient is added to its sum: read, and written back.
        moved = None if shape["stage"] != "bwd_grad_w" else 8.0 if shape["main_grad_dtype"] == "fp32" else 4.0
        seconds = group_s(device, *sizes, 1.0, float(groups), False, moved)[0]
        rows = "below 512 rows" if m < 512 else "from 512 rows"
        return 2.0 * groups * m * n * k, float(seconds[0]), f"{shape['stage']}, {rows}"
    tokens, heads, kv = (int(shape[x]) for x in ("seq_len", "head_num", "kv_head_num"))
    wide, values = int(shape["qk_head_dim"]), int(shape["v_head_dim"])
    case = attention_case(cluster, KERNELS[gpu], tokens=tokens, heads=heads, kv_heads=kv, width=wide)
    forward, backward = attention_s(case)
    products = 2.0 * heads * tokens**2
    flop = products * (wide + values) if op == "sdp_fwd" else products * (3 * wide + 2 * values)
    seconds = (forward if op == "sdp_fwd" else backward)[0] * (wide + values) / (2.0 * wide)
    return flop, float(seconds), f"{tokens:,} tokens, {'16 heads or more' if heads >= 16 else 'fewer heads'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    every = parser.parse_args().all
    table = defaultdict(list)
    with Path(__file__).with_name("simumax_kernels.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            shape = dict(part.split("=", 1) for part in row["shape"].split(", "))
            flop, seconds, kind = ours(row["gpu"], row["op"], shape)
            fraction = float(row["fraction_of_peak"])
            measured = flop / (fraction * float(row["peak_tflops"]) * 1e12)
            table[row["gpu"], row["op"], kind].append((fraction, np.log(measured / seconds)))
            if every:
                print(f"{row['gpu']:10s} {row['op']:13s} {measured * 1e6:9.1f} us, ours {seconds * 1e6:9.1f}  {shape}")
    print("gpu, kernel, kind                                           number  of peak  measured over ours, scatter")
    for (gpu, op, kind), rows in sorted(table.items()):
        share, off = np.array(rows).T
        name = f"{gpu}, {op}, {kind}"
        print(f"{name:60s} {len(rows):5d}   {np.median(share):6.3f}  {np.exp(off.mean()):8.2f}  {off.std():8.2f}")


if __name__ == "__main__":
    main()
