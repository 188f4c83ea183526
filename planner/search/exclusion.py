"""Exclusions from a search, as a user writes them: "schedule=zb-*", "recompute=full", "tp=8", "cp"."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from planner.base.errors import InputError, UnknownNameError, shown
from planner.choices.choice import number, switch
from planner.choices.table import CHOICES, SETTLED, called
from planner.schedules import SCHEDULES
from planner.search.request import Fixed
from planner.search.space import default_schedules


def without(fixed: Fixed, text: str) -> Fixed:
    """The choices left to a search less those that a text names: values of a choice, or all but its default.

    Several stand with commas: "tp=4,8", "cp,schedule=zb-*". Schedules may be named with wildcards; one that is not
    searched anyway changes nothing.

    Raises InputError for an unknown choice or value, or if nothing is left to choose; UnknownNameError for a name that
    the enumeration has not.
    """
    for one in _one_by_one(text):
        fixed = _without_one(fixed, one)
    return fixed


def _one_by_one(text: str) -> list[str]:
    """Each thing to leave out, with the name that it is a value of."""
    each: list[str] = []
    for part in text.split(","):
        is_value = each and "=" in each[-1] and "=" not in part and called(part.strip()) not in SETTLED
        each.append(f"{each[-1].partition('=')[0]}={part}" if is_value else part)
    return each


def _without_one(fixed: Fixed, text: str) -> Fixed:
    name, said, value = (part.strip() for part in text.partition("="))
    name = called(name)
    if name not in SETTLED:
        names = ", ".join(CHOICES[known].typed for known in SETTLED)
        raise InputError(f"exclude is {shown(text)}; allowed: {names}, each alone or with =value")
    choice = CHOICES[name]
    if not said and choice.kind is str:
        raise InputError(f"exclude is {shown(text)}; allowed: {name}=name, such as {name}=zb-*")
    if not said:
        return _with(fixed, text, name, fixed.among(name, [choice.default]))
    if choice.kind is not str:
        one: Any = switch(value) if choice.kind is bool else number(value) if choice.kind is int else value
        try:
            return replace(fixed, excluded=(*fixed.excluded, (name, int(choice.coded(one)))))
        except UnknownNameError:
            raise
        except InputError:
            raise InputError(f"exclude is {shown(text)}; allowed of {choice.typed}: {choice.allowed}") from None
    known = fixed.schedule or default_schedules(fixed.allow_async)
    left = [schedule for schedule in known if not fnmatchcase(schedule, value)]
    if not any(fnmatchcase(schedule, value) for schedule in SCHEDULES):
        raise InputError(f"exclude is {shown(text)}; the schedules are {', '.join(SCHEDULES)}")
    return _with(fixed, text, name, left)


def _with(fixed: Fixed, text: str, name: str, left: Sequence[Any]) -> Fixed:
    """The searched choices, one with these values."""
    if not left:
        raise InputError(f"exclude is {shown(text)}; it leaves no {CHOICES[name].typed} to choose")
    settled: dict[str, Any] = {name: tuple(left)}
    return replace(fixed, **settled)
