"""Scaling laws as data: read from `laws.toml` or a file of one's own, checked, chosen by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from planner.base.checks import CheckedTable, Schema, checked, kept, named, one_of, optional, record_table
from planner.base.errors import FileFormatError, UnknownNameError
from planner.base.files import is_path, read_toml, validate

SHIPPED = Path(__file__).with_name("laws.toml")


def _number(**bounds: float) -> Schema:
    return {"type": "float", "allow_inf_nan": False} | bounds


Positive = Annotated[float, _number(gt=0)]
Finite = Annotated[float, _number()]
_TWO_NUMBERS = {"type": "tuple", "items_schema": [{"type": "float"}] * 2}
_RISING = kept(lambda p: 0 < p[0] <= p[1], "two numbers above 0, the smaller first")
Span = Annotated[tuple[float, float], checked(_TWO_NUMBERS, _RISING)]


@dataclass(frozen=True, kw_only=True)
class Law:
    """The fields that all laws have; the name is the table's. mark: how the figures are known, read in their source,
    recalled, or derived here."""

    name: Annotated[str, optional({"type": "str"}, "")]
    source: Annotated[str, {"type": "str", "min_length": 3}]
    mark: Annotated[str, one_of(("read", "recalled", "derived"))]


@dataclass(frozen=True, kw_only=True)
class LossLaw(Law):
    """Loss in nats per token from parameters and data.

    form sum-of-powers: E + A / N^alpha + B / D^beta, D tokens at small batches; kaplan-steps: (A / N)^alpha +
    (B / S)^beta, S steps at batches far over the critical one. parameters: which N counts.
    """

    form: Annotated[str, one_of(("sum-of-powers", "kaplan-steps"))]
    parameters: Annotated[str, one_of(("all", "non-embedding"))]
    irreducible: Annotated[float, _number(ge=0)]
    parameters_coefficient: Positive
    parameters_exponent: Positive
    data_coefficient: Positive
    data_exponent: Positive
    fitted_parameters: Span
    fitted_tokens: Span


@dataclass(frozen=True, kw_only=True)
class CriticalBatchLaw(Law):
    """Critical batch in tokens, coefficient (x / unit)^exponent; overhead: samples over the least there, as a share."""

    variable: Annotated[str, one_of(("loss", "parameters", "tokens", "compute"))]
    unit: Positive
    coefficient: Positive
    exponent: Finite
    overhead: Annotated[float, _number(gt=0, le=1)]
    fitted: Span


@dataclass(frozen=True, kw_only=True)
class ComputeOptimal(Law):
    """Power laws of training compute along the front of best loss: parameters, batch in tokens, steps."""

    unit_flop: Positive
    parameters_coefficient: Positive
    parameters_exponent: Positive
    batch_coefficient: Positive
    batch_exponent: Positive
    steps_coefficient: Positive
    steps_exponent: Positive


@dataclass(frozen=True, kw_only=True)
class ReplicaLaw(Law):
    """Loss of M replicas that exchange every H steps over that of data parallelism, from N parameters: A N^a M^b,
    b = B N^c (ln H / ln fitted_every)^d."""

    coefficient: Positive
    exponent: Finite
    replicas_coefficient: Positive
    replicas_exponent: Finite
    every_exponent: Annotated[float, _number(ge=0, le=2)]
    fitted_every: Annotated[float, _number(gt=1)]
    fitted_parameters: Span
    fitted_replicas: Span


@dataclass(frozen=True, kw_only=True)
class LawFile:
    """`laws.toml`."""

    loss: Annotated[dict[str, LossLaw], named(LossLaw)]
    critical_batch: Annotated[dict[str, CriticalBatchLaw], named(CriticalBatchLaw)]
    compute_optimal: Annotated[dict[str, ComputeOptimal], named(ComputeOptimal)]
    replicas: Annotated[dict[str, ReplicaLaw], named(ReplicaLaw)]


_LAWS: Any = CheckedTable(record_table(LawFile))


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
    laws: LawFile = validate(_LAWS, tables, path)
    return laws


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
get_replica_law: Callable[[str], ReplicaLaw] = partial(_chosen, "replicas", "law of replicas")
