"""Seed papers by name: each file computes its paper's claims. Nothing is computed on import."""

from __future__ import annotations

from importlib import import_module

from planner.base.errors import UnknownNameError
from planner.reproductions.claims import Claim, Paper

__all__ = ["PAPERS", "Claim", "Paper", "get_paper"]

PAPERS = {
    "lamy-poirier-2021": "lamy_poirier_2021",
    "lamy-poirier-2022": "lamy_poirier_2022",
    "narayanan-2021": "narayanan_2021",
    "hagemann-2023": "hagemann_2023",
    "seq1f1b": "seq1f1b",
    "pipedream-2bw": "pipedream_2bw",
    "published-runs": "published_runs",
}
"""A paper's name and its file."""


def get_paper(name: str) -> Paper:
    """The paper's claims, computed.

    Raises:
        UnknownNameError: no such paper; the message gives the nearest.
    """
    if name not in PAPERS:
        raise UnknownNameError("paper", name, PAPERS)
    found: Paper = import_module(f"planner.reproductions.{PAPERS[name]}").paper()
    return found
