"""Which figures a fit to measured runs may move, by GPU architecture, and their physical bounds.

A row is data: what the shipped runs of an architecture were found to say something about.
`planner.calibration.identified` leaves out what the runs at hand don't tell. None is a model's, a run's or a source's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FittedParameter:
    """A figure under calibration: `kind:field[.key,key]`, its bounds in SI units, and where a fit starts.

    kind: efficiency; node_link or network, for each such link of the runs' clusters; networks, which share the figure.
    What may move of a framework its profile says (`fitted`). start: a usual value; None for the profile's own. A
    shipped profile's would give away to a fit without some of the runs what they had told.
    """

    path: str
    low: float
    high: float
    start: float | None = None


AMPERE = (
    FittedParameter("efficiency:matrix_fraction.fp16,bf16", 0.5, 0.95, 0.75),
    FittedParameter("efficiency:kernel_latency_s", 1e-6, 15e-6, 5e-6),
    FittedParameter("efficiency:memory_fraction", 0.4, 0.95, 0.8),
    FittedParameter("efficiency:attention_matrix_fraction", 0.1, 0.8, 0.3),
    FittedParameter("networks:fraction", 0.1, 0.95, 0.6),
)
HOPPER = (
    FittedParameter("efficiency:matrix_fraction.fp16,bf16", 0.5, 0.95, 0.7),
    FittedParameter("efficiency:matrix_fraction.fp8", 0.2, 0.9, 0.55),
    # Start: what Ampere's kernel gives on these compute units and clocks.
    FittedParameter("efficiency:flash_backward.flash1", 0.05, 0.5, 0.15),
)
ANY = (
    FittedParameter("efficiency:matrix_fraction.fp16,bf16", 0.2, 0.95),
    FittedParameter("efficiency:matrix_fraction.fp8", 0.1, 0.9),
    FittedParameter("efficiency:matrix_fraction.fp32", 0.2, 0.95),
    FittedParameter("efficiency:matrix_fraction.tf32", 0.2, 0.95),
    FittedParameter("efficiency:kernel_latency_s", 1e-6, 15e-6),
    FittedParameter("efficiency:memory_fraction", 0.3, 0.95),
    *(
        FittedParameter(f"efficiency:{direction}.{kernel}", 0.05, 0.8)
        for kernel in ("flash1", "flash2", "flash3")
        for direction in ("flash_forward", "flash_backward")
    ),
    FittedParameter("efficiency:attention_matrix_fraction", 0.1, 0.8),
    FittedParameter("efficiency:rate_spread", 0.0, 0.08),
    FittedParameter("node_link:fraction", 0.2, 0.95),
    FittedParameter("node_link:latency_s", 1e-6, 300e-6),
    FittedParameter("network:fraction", 0.1, 0.95),
)
"""For an architecture without a list of its own, and what `everything` adds to the others."""

PARAMETERS = {"ampere": AMPERE, "hopper": HOPPER}


def parameters_of(architecture: str, everything: bool = False) -> tuple[FittedParameter, ...]:
    """What may be fitted to runs on GPUs of an architecture; `everything`: also what its own list leaves alone."""
    own = PARAMETERS.get(architecture, ANY)
    known = {p.path for p in own}
    return own + (tuple(p for p in ANY if p.path not in known) if everything else ())
