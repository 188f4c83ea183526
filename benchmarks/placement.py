"""What the order of nodes gains where links differ: python benchmarks/placement.py [--draws 10]

Of layouts on 16 nodes of DGX H100, drawn matrices of bandwidths around the cluster's own: each link, and each of its
two ways, log-normal with a spread of 10 or 30 %; one link between two nodes at a quarter; one node at half. Written for
each: by how much a step is longer in the nodes' own order than on the cluster's own links, and by how much the best
order found shortens it; means, and the largest of the latter. Takes five minutes.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner import Cluster, Model, estimate
from planner.base.arrays import Array
from planner.search.placed import Placement

NODES = 16
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "LLaMA 3 70B, batch 128": ("llama3-70b", 128, {
        "dp": 4, "tp": 4, "pp": 4, "cp": 2, "virtual_stages": 5, "zero": 1, "sequence_parallel": True}),
    "the same, batch 512": ("llama3-70b", 512, {
        "dp": 4, "tp": 4, "pp": 4, "cp": 2, "virtual_stages": 4, "zero": 1, "sequence_parallel": True}),
    "the same, batch 128, dp 8 tp 8 pp 2": ("llama3-70b", 128, {
        "dp": 8, "tp": 8, "pp": 2, "zero": 1, "sequence_parallel": True, "recompute": "selective"}),
    "Qwen3-235B, batch 512, experts in a node": ("qwen3-235b-a22b", 512, {
        "dp": 16, "pp": 8, "ep": 8, "virtual_stages": 6, "zero": 1, "recompute": "full", "layer_split": "balanced"}),
    "the same, experts over two nodes": ("qwen3-235b-a22b", 512, {
        "dp": 32, "pp": 4, "ep": 16, "virtual_stages": 12, "micro_batch": 2, "zero": 1, "recompute": "full",
        "layer_split": "balanced"}),
}  # fmt: skip
"""Model, batch and layout: the first two and the mixture's as `planner recommend` names them, first or second."""
LINKS = ("spread 10 %", "spread 30 %", "one slow link", "one slow node")


def drawn(links: str, draw: np.random.Generator) -> Array:
    """What each link reaches over the cluster's own."""
    out = np.ones((NODES, NODES))
    a, b = draw.choice(NODES, 2, replace=False)
    if links.startswith("spread"):
        out = np.exp(draw.normal(0.0, float(links.split()[1]) / 100.0, out.shape))
    elif links == "one slow link":
        out[a, b] = out[b, a] = 0.25
    else:
        out[a, :] = out[:, a] = 0.5
    return out


@dataclass(frozen=True)
class Gain:
    """Of one draw: what a step takes more in the nodes' own order than on the cluster's links, and the best less."""

    more: float
    less: float


def gain(one: Placement) -> Gain:
    """Of one draw."""
    own = one.of_order(range(NODES))
    return Gain(more=own / one.step_s({}) - 1.0, less=1.0 - one.of_order(one.best()) / own)


def main() -> None:
    """A table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    draws = parser.parse_args().draws
    print(f"| layout | {' | '.join(LINKS)} |\n|{' --- |' * (1 + len(LINKS))}")
    for name, (model, batch, row) in CASES.items():
        plan = estimate(Model(model), Cluster("dgx-h100"), batch=batch, **row).as_plan()
        cells = []
        for links in LINKS:
            draw = np.random.default_rng(1)
            found = [
                gain(Placement(setup=plan.setup, layouts=plan.layouts, shares=drawn(links, draw))) for _ in range(draws)
            ]
            more, less = (100.0 * np.mean([getattr(x, part) for x in found]) for part in ("more", "less"))
            cells.append(f"+{more:.1f}, -{less:.1f} (-{100.0 * max(x.less for x in found):.1f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
