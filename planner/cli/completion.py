"""What the shell offers for a name that is being typed (planner --install-completion). Each loads only its registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Completer = Callable[[str], list[str]]


def _begin(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def models(incomplete: str) -> list[str]:
    """Presets; for a file the shell goes on by itself."""
    from planner.models import model_names

    return _begin(model_names(), incomplete)


def clusters(incomplete: str) -> list[str]:
    """Shipped clusters."""
    from planner.hardware import profile_names

    return _begin(profile_names("clusters"), incomplete)


def links(incomplete: str) -> list[str]:
    """Shipped links, for --network."""
    from planner.hardware import profile_names

    return _begin(profile_names("links"), incomplete)


def frameworks(incomplete: str) -> list[str]:
    """Shipped framework profiles, and frameworks that plans are written for."""
    from planner.exporters.plan_export import TARGETS
    from planner.hardware import profile_names

    return _begin(list(dict.fromkeys([*profile_names("frameworks"), *TARGETS])), incomplete)


def schedules(incomplete: str) -> list[str]:
    """Schedules and their aliases."""
    from planner.schedules import ALIASES, SCHEDULES

    return _begin([*SCHEDULES, *ALIASES], incomplete)


def exports(incomplete: str) -> list[str]:
    """Frameworks that plans are written for."""
    from planner.exporters.plan_export import ALIASES, TARGETS

    return _begin([*TARGETS, *ALIASES], incomplete)


def papers(incomplete: str) -> list[str]:
    """Papers reproduced, and all of them."""
    from planner.reproductions import paper_names

    return _begin([*paper_names(), "all"], incomplete)


def loss_laws(incomplete: str) -> list[str]:
    """Loss laws."""
    from planner.scaling.laws import read_laws

    return _begin(read_laws().loss, incomplete)


def batch_laws(incomplete: str) -> list[str]:
    """Laws of the critical batch."""
    from planner.scaling.laws import read_laws

    return _begin(read_laws().critical_batch, incomplete)


def objectives(incomplete: str) -> list[str]:
    """What a search can rank by."""
    from planner.search import OBJECTIVES

    return _begin(OBJECTIVES, incomplete)


def one_of(names: Iterable[str]) -> Completer:
    """The completer of an option with these values."""
    return lambda incomplete: _begin(names, incomplete)
