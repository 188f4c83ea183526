"""Assumptions of a training time besides the step: data with sources, each overridable, all printed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from planner.base.checks import CheckedTable, named, optional
from planner.base.errors import InputError, UnknownNameError, shown
from planner.base.files import read_toml, validate
from planner.base.units import GIGA, HOUR, MINUTE
from planner.hardware import Cluster
from planner.scaling.goodput import Reliability
from planner.scaling.training import Prices, Storage

SHIPPED = Path(__file__).with_name("assumptions.toml")

Number = Annotated[float, {"type": "float"}]
Text = Annotated[str, {"type": "str", "min_length": 3}]


@dataclass(frozen=True, kw_only=True)
class AssumptionTable:
    """A table of `assumptions.toml`."""

    option: Annotated[str, {"type": "str", "pattern": "^--[a-z-]+$"}]
    says: Text
    unit: Text
    low: Number
    high: Number
    value: Annotated[float | None, optional({"type": "float"})]
    whole: Annotated[bool, optional({"type": "bool"}, False)]
    off: Annotated[bool, optional({"type": "bool"}, False)]  # nothing uses it unless it is given
    beside: Annotated[str | None, optional({"type": "str"})]  # nothing uses it unless that one is given
    beside_value: Annotated[float | None, optional({"type": "float"})]  # and is this, not only above 0
    source: Text


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A figure, its unit, where it comes from, and the option that overrides it; value None where nobody knows.

    used: it bears on the answer.
    """

    value: float | None
    unit: str
    source: str
    option: str
    used: bool


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """All figures by name, and what the scaling layer makes of them."""

    figures: Mapping[str, Assumption]
    gpus_per_node: int

    def __getitem__(self, name: str) -> float:
        value = self.figures[name].value
        assert value is not None, name
        return value

    @property
    def reliability(self) -> Reliability:
        """Failures, restarts, repairs and stragglers, seconds."""
        return Reliability(
            mtbf_s=self["mtbf_hours"] * HOUR, restart_s=self["restart_minutes"] * MINUTE,
            repair_s=self["repair_hours"] * HOUR, spares=int(self["spare_nodes"]),
            slow_mtbf_s=self["straggler_hours"] * HOUR, slow_s=self["straggler_minutes"] * MINUTE,
            slow_by=self["straggler_slows"],
        )  # fmt: skip

    @property
    def prices(self) -> Prices:
        """Money and power."""
        price = self.figures["price_usd_per_hour"].value
        return Prices(price_per_hour=price, power_w=self["power_w"], site_factor=self["site_factor"])

    def check_cost(self, most: float | None, accelerator: str) -> None:
        """Raises InputError if a cost is a limit where nobody knows the accelerator's price."""
        if most is not None and self.prices.price_per_hour is None:
            raise InputError(f"max_cost is {most:g}, but {accelerator} has no price; give --price (price_usd_per_hour)")

    def storage(self, parameters: float) -> Storage:
        """A checkpoint of so many trained parameters and where it goes."""
        size = self["checkpoint_bytes_per_parameter"] * parameters
        bandwidth = self["storage_gbyte_per_s"] * GIGA
        return Storage(
            checkpoint_bytes=size, bandwidth_bytes_per_s=bandwidth, gpus_per_node=self.gpus_per_node,
            host_copies=int(self["host_copies"]), copy_bytes_per_s=self["copy_gbyte_per_s"] * GIGA,
            neighbour_bytes_per_s=self["neighbour_gbyte_per_s"] * GIGA,
        )  # fmt: skip


def assumed_names() -> tuple[str, ...]:
    """The names of all assumptions."""
    return tuple(_shipped())


@cache
def _shipped() -> dict[str, AssumptionTable]:
    every: Any = CheckedTable(named(AssumptionTable))
    tables: dict[str, AssumptionTable] = validate(every, read_toml(SHIPPED), SHIPPED)
    return tables


def assume(cluster: Cluster, given: Mapping[str, float | None] | None = None) -> Assumptions:
    """The assumptions for a cluster, overridden by what is given (None: not given).

    Raises UnknownNameError for an unknown name; InputError for a figure out of its range: it
    names the option, the value and what is allowed.
    """
    if not isinstance(given := given or {}, Mapping):
        raise InputError(
            f"given is {shown(given)}; allowed: assumptions by name, such as {{'price_usd_per_hour': 2.0}}"
        )
    for name in given:
        if name not in _shipped():
            raise UnknownNameError("assumption", name, [*_shipped()])
    copies = cluster.gpus_per_node * cluster.host_link.reached_bytes_per_s
    profile = {
        "storage_gbyte_per_s": cluster.storage_bandwidth_bytes_per_s / GIGA,
        "copy_gbyte_per_s": min(copies, cluster.host_memory_bandwidth_bytes_per_s) / GIGA,
        "neighbour_gbyte_per_s": cluster.nics_per_node * cluster.network.reached_bytes_per_s / GIGA,
        "price_usd_per_hour": cluster.accelerator.price_per_hour,
        "power_w": cluster.accelerator.power_w,
    } | ({"site_factor": cluster.site_factor} if cluster.site_factor else {})
    figures = {}
    for name, entry in _shipped().items():
        own = given.get(name)
        number = isinstance(own, int | float) and not isinstance(own, bool)
        if own is not None and not (number and entry.low <= own <= entry.high and not (entry.whole and own % 1)):
            said = f"{own:g}" if number else shown(own)
            allowed = f"{'whole, ' * entry.whole}{entry.low:g} to {entry.high:g} {entry.unit} ({name})"
            raise InputError(f"{entry.option} is {said}; allowed: {allowed}")
        due, other = entry.beside_value, given.get(entry.beside or "")
        alone = entry.beside is not None and (other != due if due else not other)
        if own and entry.beside and alone:
            needs = f"{_shipped()[entry.beside].option} {f'{due:g}' if due else 'above 0'}"
            raise InputError(f"{entry.option} is {own:g}, which needs {needs}")
        value = own if own is not None else profile.get(name, entry.value)
        source = "given" if own is not None else cluster.sources.get(name, entry.source)
        if value is None:
            source = f"not in the profile: give {entry.option}"
        used = own is not None or not (entry.off or alone)
        figures[name] = Assumption(value=value, unit=entry.unit, source=source, option=entry.option, used=used)
    return Assumptions(figures=figures, gpus_per_node=cluster.gpus_per_node)
