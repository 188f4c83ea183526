"""Our seconds of single kernels on one MI300X beside measured ones: linear layers in bf16 and fp8, attention.

    python benchmarks/mi300x_kernels.py

`primus_turbo_kernels.csv` holds what AMD-AGI/Primus-Turbo measured in April 2026 (branch agent-optimize,
benchmark/results_optimized). A linear layer's forward pass is one product, its backward pass two; in fp8 their operands
are cast beside them: inputs and weights forward, gradients backward, 5 bytes an element each. Its backward passes were
timed without clearing gradients, so each adds to those of before, 6 bytes an element. Attention is causal, by AITER's
kernels. The logarithm of measured over ours is averaged.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from kernels import attention_case

from planner.costs.kernels.attention import attention_s
from planner.costs.kernels.device import Device, matmul_s
from planner.hardware import load_cluster
from planner.layouts import Attention, Precision

CLUSTER = load_cluster("mi300x-server")
CAST_BYTES = 5.0  # read for the scale, read, written
ADD_BYTES = 6.0  # two read, one written


def linear_s(precision: Precision, rows: int, columns: int, depth: int) -> tuple[float, float]:
    """Seconds of a linear layer forward and backward."""
    device = Device.of(CLUSTER.accelerator, np.array([precision]))
    casts, adds = CAST_BYTES * (precision == Precision.FP8) / device.memory_rate, ADD_BYTES / device.memory_rate
    operands, out = float((rows + columns) * depth), float(rows * columns)
    forward = matmul_s(device, rows, columns, depth) + casts * operands
    products = matmul_s(device, rows, depth, columns) + matmul_s(device, columns, depth, rows)
    return float(forward[0]), float(products[0]) + casts * out + adds * operands


def causal_s(sequences: int, tokens: int, heads: int, kv_heads: int, head_dim: int) -> tuple[float, float]:
    """Seconds of causal attention forward and backward."""
    case = attention_case(
        CLUSTER, Attention.FLASH3, tokens=tokens, heads=heads, kv_heads=kv_heads, width=head_dim, sequences=sequences
    )
    forward, backward = attention_s(case)
    adds = ADD_BYTES * sequences * tokens * head_dim * (heads + 2 * kv_heads) / case.device.memory_rate
    return float(forward[0]), float(backward[0]) + adds


def main() -> None:
    table = defaultdict(list)
    with Path(__file__).with_name("primus_turbo_kernels.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            shape = {name: int(value) for name, value in (part.split("=") for part in row["shape"].split(", "))}
            if row["op"].startswith("linear"):
                flop, times = 2.0 * np.prod([*shape.values()], dtype=float), 2.0
                seconds = linear_s(Precision[row["op"].split()[1].upper()], **shape)
                kind = row["op"]
            else:
                flop, times = 2.0 * shape["sequences"] * shape["tokens"] ** 2 * shape["heads"] * shape["head_dim"], 2.5
                seconds, kind = causal_s(**shape), f"{row['op']}, heads of {shape['head_dim']}"
            for way, factor, ours in zip(("forward", "backward"), (1.0, times), seconds, strict=True):
                rate = float(row[f"{way}_tflops"])
                table[f"{kind}, {way}"].append((rate, np.log(flop * factor / rate / 1e12 / ours)))
    print("kernel                                   number  TFLOP/s  measured over ours, scatter")
    for name, rows in table.items():
        rate, off = np.array(rows).T
        print(f"{name:40s} {len(rows):6d}  {rate.mean():7.0f}  {np.exp(off.mean()):18.3f}  {off.std():7.3f}")


if __name__ == "__main__":
    main()
