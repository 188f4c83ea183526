"""The shell's completions of names (planner --install-completion). Each kind of name loads only its registry."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Completer = Callable[[str], list[str]]


def _begin(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def offered(module: str, names: Callable[[Any], Iterable[str]]) -> Completer:
    """The completer of what a module names; the module is loaded when something is typed."""
    return lambda incomplete: _begin(names(import_module(module)), incomplete)


models = offered("planner.models", lambda m: m.model_names())  # for a file the shell goes on by itself
clusters = offered("planner.hardware", lambda m: m.profile_names("clusters"))
links = offered("planner.hardware", lambda m: m.profile_names("links"))
schedules = offered("planner.schedules", lambda m: [*m.SCHEDULES, *m.ALIASES])
exports = offered("planner.exporters.plan_export", lambda m: [*m.TARGETS, *m.ALIASES])
papers = offered("planner.reproductions", lambda m: [*m.paper_names(), "all"])
loss_laws = offered("planner.scaling.laws", lambda m: m.read_laws().loss)
batch_laws = offered("planner.scaling.laws", lambda m: m.read_laws().critical_batch)
objectives = offered("planner.search", lambda m: m.OBJECTIVES)


def frameworks(incomplete: str) -> list[str]:
    """Shipped framework profiles, and frameworks that plans are written for."""
    from planner.exporters.plan_export import TARGETS
    from planner.hardware import profile_names

    return _begin(dict.fromkeys([*profile_names("frameworks"), *TARGETS]), incomplete)


def one_of(names: Iterable[str]) -> Completer:
    """The completer of an option with these values."""
    return lambda incomplete: _begin(names, incomplete)
