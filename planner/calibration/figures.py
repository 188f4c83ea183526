"""The free figures of a fit: where each stands in the runs' profiles, its start, and the profiles with it replaced.

Which may move, by GPU architecture, and their physical bounds, stand in `fitted.toml`. `planner.calibration.identified`
leaves out what the runs at hand don't tell. None is a model's, a run's or a source's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeVar

from planner.base.arrays import Array
from planner.base.files import read_toml
from planner.base.units import MICRO
from planner.hardware import Cluster, Efficiency, Framework, Link, load_cluster, load_framework
from planner.hardware.declared import movable
from planner.validation import MeasuredRun, Predictions, predict
from planner.validation.predict import LoadCluster, LoadFramework

SHIPPED = Path(__file__).with_name("fitted.toml")


@dataclass(frozen=True)
class FittedParameter:
    """A figure under calibration by its path, as `fitted.toml` explains; start: None for the profile's own value."""

    path: str
    low: float
    high: float
    start: float | None = None


@cache
def fitted_parameters() -> dict[str, tuple[FittedParameter, ...]]:
    """The file's lists by architecture; `any` is for those that have no list of their own."""
    return {
        architecture: tuple(FittedParameter(path, **bounds) for path, bounds in table.items())
        for architecture, table in read_toml(SHIPPED).items()
    }


def parameters_of(architecture: str, everything: bool = False) -> tuple[FittedParameter, ...]:
    """Parameters to fit to runs on an architecture's GPUs; `everything`: also those that its own list omits."""
    lists = fitted_parameters()
    own = lists.get(architecture, lists["any"])
    known = {p.path for p in own}
    return own + (tuple(p for p in lists["any"] if p.path not in known) if everything else ())


T = TypeVar("T", Efficiency, Link, Framework)


@dataclass(frozen=True, kw_only=True)
class FittedFigure:
    """One number that a fit may move, in SI units.

    folder: of the profiles (efficiency, links, frameworks); names: those that share the figure; field, keys: where it
    stands in them; low, high: physical bounds; profile: what the profiles have; start: where a fit begins.
    """

    folder: str
    names: tuple[str, ...]
    field: str
    keys: tuple[str, ...] = ()
    low: float
    high: float
    profile: float
    start: float

    @property
    def profile_field(self) -> str:
        """Its name in a profile file, which has microseconds."""
        return f"{self.field.removesuffix('_s')}_us" if self.field.endswith("_s") else self.field

    @property
    def profile_unit(self) -> float:
        """A profile file's unit in SI."""
        return MICRO if self.field.endswith("_s") else 1.0

    @property
    def label(self) -> str:
        """The figure as a reader of the profiles knows it."""
        keys = f".{','.join(self.keys)}" if self.keys else ""
        return f"{','.join(self.names)} {self.profile_field}{keys}"

    def put(self, profile: T, value: float) -> T:
        """The profile with this figure, if it is one of those that have it."""
        if profile.name not in self.names:
            return profile
        new: Any = {**getattr(profile, self.field), **dict.fromkeys(self.keys, value)} if self.keys else value
        changed: Any = {self.field: new}
        return replace(profile, **changed)


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """How the clusters and frameworks that some runs name are loaded, by name or path: each once."""

    cluster: LoadCluster = field(default_factory=lambda: cache(load_cluster))
    framework: LoadFramework = field(default_factory=lambda: cache(load_framework))


def figures_of(
    parameters: Iterable[FittedParameter], clusters: Sequence[Cluster], frameworks: Sequence[Framework]
) -> list[FittedFigure]:
    """The parameters' figures in these profiles: links one by one, frameworks that are there, keys that are there."""
    efficiencies = _by_name(c.accelerator.efficiency for c in clusters)
    node_links, networks = _by_name(c.node_link for c in clusters), _by_name(c.network for c in clusters)
    out: list[FittedFigure] = []
    for p in parameters:
        kind, _, place = p.path.partition(":")
        if kind == "efficiency":
            groups: list[Mapping[str, Any]] = [{name: e} for name, e in efficiencies.items()]
            folder = "efficiency"
        elif kind in ("node_link", "network"):
            links = node_links if kind == "node_link" else networks
            groups, folder = [{name: link} for name, link in links.items()], "links"
        else:
            groups, folder = [networks], "links"
        known = {(f.folder, f.names, f.field, f.keys) for f in out}
        found = [_figure(p, folder, group, place) for group in groups if group]
        out += [f for f in found if f is not None and (f.folder, f.names, f.field, f.keys) not in known]
    return out + _of_frameworks(_by_name(frameworks), efficiencies)


def _of_frameworks(used: Mapping[str, Framework], architectures: Iterable[str]) -> list[FittedFigure]:
    """The figures that frameworks' profiles say a fit may move on such GPUs, of all that share a figure together."""
    shared: dict[tuple[str, str], dict[str, Any]] = {}
    for name, framework in sorted(used.items()):
        for place in (place for a in architectures for place in framework.fitted.get(a, {}).items()):
            shared.setdefault(place, {})[name] = framework
    out = []
    for (key, _), frameworks in sorted(shared.items()):
        field, d = movable(Framework)[key]
        bounds = [value * d.names(field)[key] for value in d.fit or ()]
        out.append(_figure(FittedParameter(field, *bounds), "frameworks", frameworks, field))
    return [figure for figure in out if figure is not None]


def _by_name(profiles: Iterable[Any]) -> dict[str, Any]:
    return {p.name: p for p in profiles}


def _figure(p: FittedParameter, folder: str, profiles: Mapping[str, Any], place: str) -> FittedFigure | None:
    """The figure in profiles that share it, the first one's its value; None where its table lacks it."""
    name, _, keys = place.partition(".")
    values = [getattr(profile, name) for profile in profiles.values()]
    present = tuple(k for k in keys.split(",") if all(k in table for table in values)) if keys else ()
    if keys and not present:
        return None
    now = float(values[0][present[0]] if keys else values[0])
    return FittedFigure(
        folder=folder, names=tuple(profiles), field=name, keys=present, low=p.low, high=p.high, profile=now,
        start=now if p.start is None else p.start,
    )  # fmt: skip


def predict_with(
    figures: Sequence[FittedFigure], values: Array, runs: list[MeasuredRun], base: Profiles, closed_form: bool = False
) -> Predictions:
    """Predictions of runs by profiles with other figures; values: SI, shape (figures,). closed_form: of `predict`."""
    pairs = list(zip(figures, map(float, values), strict=True))

    def replaced(profile: T) -> T:
        return reduce(lambda thing, pair: pair[0].put(thing, pair[1]), pairs, profile)

    def cluster_of(name: str) -> Cluster:
        cluster = base.cluster(name)
        efficiency = replaced(cluster.accelerator.efficiency)
        return replace(
            cluster,
            accelerator=replace(cluster.accelerator, efficiency=efficiency),
            node_link=replaced(cluster.node_link),
            network=replaced(cluster.network),
        )

    return predict(runs, cluster_of, lambda name: replaced(base.framework(name)), closed_form=closed_form)
