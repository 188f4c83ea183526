"""Measured matrix products of an A100 beside predicted ones, and what rows off a 32-byte grid cost.

    python benchmarks/aligned_products.py

`a100_products.csv` holds TFLOP/s of single products in fp16 that Anthony et al. measured for "The Case for Co-Designing
Model Architectures with Hardware" (arXiv 2401.14489), from the published results of their working repository
(github.com/jahatef/TransformerSizing) and of github.com/EleutherAI/cookbook: `linear`, rows m by columns n over depth k
(series `sizing-square`: n = k; `sizing-linear`: one of them, both as torch's linear; `cookbook-ksweep`: n, as
torch.mm); `scores` and `values`, attention's batched products of heads of one width, by torch.bmm. Numbers only were
taken. That the GPU is an A100 of 40 GB, and the version of cuBLAS (torch 1.13 and 2.0), follow from other files beside
them.

Prints, for each alignment, the rate as a share of what lies between the nearest sizes that are multiples of 64 elements
(the median; where `aligned_fraction` in `hardware_profiles/efficiency/ampere.toml` comes from), and how the profile,
which was fitted to whole training runs and has seen none of these, predicts the products.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.costs.kernels.device import Device, aligned_share, matmul_s
from planner.hardware import load_accelerator
from planner.layouts import Precision

__all__ = ["Product", "alignment", "predicted_tflops", "products", "shares"]

ELEMENT_BYTES = 2
GRID = 64  # elements
CLASSES = {"bytes_16": (16,), "bytes_4": (4, 8), "bytes_2": (2,)}
LEAST_FLOP = 1e10


@dataclass(frozen=True)
class Product:
    """A measured product: its kind, the sweep it belongs to, its sizes and rate."""

    kind: str
    series: str
    batch: int
    m: int
    n: int
    k: int
    tflops: float

    @property
    def size(self) -> int:
        """What its sweep varies: the head's width, or the depth where it differs from one product to the next."""
        return {"scores": self.k, "values": self.n}.get(
            self.kind, self.n if self.series == "cookbook-ksweep" else self.k
        )

    @property
    def sweep(self) -> tuple[object, ...]:
        """What all products of its sweep share."""
        other = self.n if self.series == "sizing-linear" else 0
        return (self.kind, self.series, self.batch, self.m, other)


def products() -> list[Product]:
    """All that were measured."""
    with (Path(__file__).with_name("a100_products.csv")).open(newline="") as f:
        rows = list(csv.DictReader(f))
    return [
        Product(r["kind"], r["series"], int(r["batch"]), int(r["m"]), int(r["n"]), int(r["k"]), float(r["tflops"]))
        for r in rows
    ]


def alignment(p: Product) -> int:
    """Bytes at whose multiples the rows of both operands begin: along the depth, torch.mm's second ones across n."""
    sides = {"scores": (p.k,), "values": (p.n,)}.get(p.kind, (p.k, p.n) if p.series == "cookbook-ksweep" else (p.k,))
    return min(side & -side for side in sides) * ELEMENT_BYTES


def shares(every: list[Product]) -> Iterator[tuple[Product, float]]:
    """Products off the grid with their rate over that between their neighbours on it; heads from 64 channels on."""
    sweeps: dict[tuple[object, ...], dict[int, float]] = {}
    for p in every:
        sweeps.setdefault(p.sweep, {})[p.size] = p.tflops
    for p in every:
        below = p.size // GRID * GRID
        rates = sweeps[p.sweep]
        if p.size % GRID and below in rates and below + GRID in rates:
            between = np.interp(p.size, [below, below + GRID], [rates[below], rates[below + GRID]])
            yield p, p.tflops / float(between)


def predicted_tflops(every: list[Product]) -> NDArray[np.float64]:
    """Of linear products, shape (n,), by the A100's profile: forward, one GPU."""
    device = Device.of(load_accelerator("a100-sxm-40gb"), np.array([int(Precision.FP16)]), 1)
    m, n, k = (np.array([getattr(p, side) for p in every], dtype=np.float64) for side in ("m", "n", "k"))
    seconds = matmul_s(device, m, n, k, aligned_share(device, ELEMENT_BYTES, k))
    return np.asarray(2.0 * m * n * k / seconds / 1e12)


def main() -> None:
    every = [p for p in products() if 2.0 * p.batch * p.m * p.n * p.k >= LEAST_FLOP]
    off = list(shares(every))
    print(f"{'rows begin at':16s} {'kind':8s} {'products':>8s} {'median':>7s} {'p10':>6s} {'p90':>6s}")
    for name, sizes in {"bytes_32 and 64": (32, 64), **CLASSES}.items():
        medians = []
        for kind in ("linear", "scores", "values"):
            ratio = np.array([r for p, r in off if p.kind == kind and alignment(p) in sizes])
            if len(ratio):
                low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
                medians.append(middle)
                print(f"{name:16s} {kind:8s} {len(ratio):8d} {middle:7.3f} {low:6.3f} {high:6.3f}")
        print(f"{name:16s} {'mean':8s} {'':8s} {np.mean(medians):7.3f}")
    linear = [p for p in every if p.kind == "linear"]
    ratio = predicted_tflops(linear) / np.array([p.tflops for p in linear])
    print(f"\n{'linear products':34s} {'products':>8s} {'predicted / measured, median':>28s} {'p10':>6s} {'p90':>6s}")
    for series in ("sizing-square", "sizing-linear", "cookbook-ksweep"):
        for name, least, most in (("on a grid of 32 bytes", 32, np.inf), ("of 16", 16, 16), ("off it", 0, 8)):
            kept = np.array([p.series == series and least <= alignment(p) <= most for p in linear])
            if kept.any():
                low, middle, high = np.quantile(ratio[kept], [0.1, 0.5, 0.9])
                print(f"{series + ', ' + name:34s} {kept.sum():8d} {middle:28.3f} {low:6.3f} {high:6.3f}")


if __name__ == "__main__":
    main()
