"""Lamy-Poirier 2021's figures of X_160 under the paper's own assumptions (`planner.scaling.lamy_poirier`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.base.units import DAY, GIB
from planner.scaling import lamy_poirier as lp


def model_of_2021(
    *, quantity: str, strategy: str, at: Sequence[int] | None = None, ethernet: bool = False
) -> tuple[float, str]:
    """A figure of a strategy: of the configuration that the search finds, or of a given one.

    at: n_b, n_l, n_a, n_mu, b_mu. ethernet: the slow network alone, between GPUs and between stages.
    quantity: days, GPUs, state (GiB per GPU), speed (trainings per day).

    Raises:
        PlannerError: no configuration keeps the rules.
    """
    task, s = lp.PaperTask(), lp.STRATEGIES[strategy]
    hardware = lp.Hardware()
    if ethernet:
        hardware = replace(hardware, network_bytes_per_s=lp.ETHERNET)
    if at is None:
        c = lp.fastest(task, s, hardware)
    else:
        c = lp.Configuration(n_b=at[0], n_l=at[1], n_a=at[2], n_mu=at[3], b_mu=at[4])
    six, four = (float(lp.time_s(task, s, hardware, c, all_reduces=n)) / DAY for n in (6, 4))
    note = f"{c.n_b} x {c.n_l} x {c.n_a} GPUs, {c.n_mu} micro-batches of {c.b_mu}"
    if s.tensor:
        note += f"; {four:.2f} days with four all-reduces per layer"
    state = float(lp.memory_bytes(task, s, c)["state"]) / GIB
    return {"days": six, "GPUs": float(c.gpus), "state": state, "speed": 1.0 / six}[quantity], note
