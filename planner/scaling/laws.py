"""Scaling laws as data: read from `laws.toml` or a file of one's own, checked, chosen by name."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.base.errors import FileFormatError, UnknownNameError
from planner.base.files import is_path, read_toml, validate
from planner.base.tables import StrictTable, rule

SHIPPED = Path(__file__).with_name("laws.toml")


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=3)]
Span = Annotated[tuple[float, float], rule(lambda p: 0 < p[0] <= p[1], "two numbers above 0, the smaller first")]
Mark = Literal["read", "recalled", "derived"]
"""How a figure is known: read in its source, recalled, or derived here."""


class Law(StrictTable):
    """The fields that all laws have; the name is the table's."""

    name: str = ""
    source: Text
    mark: Mark


class LossLaw(Law):
    """Loss in nats per token from parameters and data.

    form sum-of-powers: E + A / N^alpha + B / D^beta, D tokens at small batches; kaplan-steps: (A / N)^alpha +
    (B / S)^beta, S steps at batches far over the critical one. parameters: which N counts.
    """

    form: Literal["sum-of-powers", "kaplan-steps"]
    parameters: Literal["all", "non-embedding"]
    irreducible: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    parameters_coefficient: Positive
    parameters_exponent: Positive
    data_coefficient: Positive
    data_exponent: Positive
    fitted_parameters: Span
    fitted_tokens: Span


class CriticalBatchLaw(Law):
    """Critical batch in tokens, coefficient (x / unit)^exponent; overhead: samples over the least there, as a share."""

    variable: Literal["loss", "parameters", "tokens", "compute"]
    unit: Positive
    coefficient: Positive
    exponent: Finite
    overhead: Annotated[float, Field(gt=0, le=1)]
    fitted: Span


class ComputeOptimal(Law):
    """Power laws of training compute along the front of best loss: parameters, batch in tokens, steps."""

    unit_flop: Positive
    parameters_coefficient: Positive
    parameters_exponent: Positive
    batch_coefficient: Positive
    batch_exponent: Positive
    steps_coefficient: Positive
    steps_exponent: Positive


class ReplicaLaw(Law):
    """Loss of M replicas that exchange every H steps over that of data parallelism, from N parameters: A N^a M^b,
    b = B N^c (ln H / ln fitted_every)^d."""

    coefficient: Positive
    exponent: Finite
    replicas_coefficient: Positive
    replicas_exponent: Finite
    every_exponent: Annotated[float, Field(ge=0, le=2)]
    fitted_every: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    fitted_parameters: Span
    fitted_replicas: Span


class LawFile(StrictTable):
    """`laws.toml`."""

    loss: dict[str, LossLaw] = {}
    critical_batch: dict[str, CriticalBatchLaw] = {}
    compute_optimal: dict[str, ComputeOptimal] = {}
    replicas: dict[str, ReplicaLaw] = {}


@cache
def read_laws(path: Path = SHIPPED) -> LawFile:
    """All laws of a file, each with its table's name.

    Raises FileFormatError for a file that can't be read, parsed or validated.
    """
    tables: dict[str, Any] = read_toml(path)
    for kind in tables.values():
        if isinstance(kind, dict):
            for name, law in kind.items():
                if isinstance(law, dict):
                    law.setdefault("name", name)
    return validate(LawFile, tables, path)


def _chosen(kind: str, what: str, name: str) -> Any:
    """A shipped law by name, or the only one of its kind in a file of one's own."""
    if is_path(name):
        laws: dict[str, Any] = getattr(read_laws(Path(name)), kind)
        if len(laws) != 1:
            raise FileFormatError(f"{name}: has {len(laws)} tables [{kind}.NAME]; allowed: one {what}")
        return next(iter(laws.values()))
    shipped: dict[str, Any] = getattr(read_laws(), kind)
    if name not in shipped:
        raise UnknownNameError(what, name, shipped, "Or give a TOML file of your own.")
    return shipped[name]


# Each raises UnknownNameError if there is no law of that name, with the nearest; FileFormatError for a file that does
# not validate, or holds another number of such laws than one.
get_loss_law: Callable[[str], LossLaw] = partial(_chosen, "loss", "loss law")
get_critical_batch_law: Callable[[str], CriticalBatchLaw] = partial(
    _chosen, "critical_batch", "law of the critical batch"
)
get_compute_optimal: Callable[[str], ComputeOptimal] = partial(_chosen, "compute_optimal", "compute-optimal front")
get_replica_law: Callable[[str], ReplicaLaw] = partial(_chosen, "replicas", "law of replicas")
