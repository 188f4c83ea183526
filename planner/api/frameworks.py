"""What `--framework` names: a profile of figures, or a framework that planner writes files for, as one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.base.errors import InputError, UnknownNameError
from planner.base.files import is_path
from planner.base.lookup import same_name
from planner.choices.table import CHOICES
from planner.hardware import profile_names
from planner.question import request, word
from planner.search.request import Request
from planner.setup import Setup


def named_framework(name: str | None, runs_on: str | None = None) -> tuple[str | None, str | None]:
    """The profile whose figures a framework's name means, and the export that a search is held to; None: no matter.

    A profile's name means the profile, and what it says the framework runs. A name of `planner export` means what that
    framework can run, by the figures of the profile of that name, else of the one that its export declares. runs_on:
    the export, by its former option.

    Raises UnknownNameError for an unknown framework, InputError if two exports are named.
    """
    from planner.exporters.plan_export import ALIASES, TARGETS, get_target

    former = None if runs_on is None else get_target(word("runs_on", runs_on))
    known = profile_names("frameworks")
    profile = name is None or is_path(name) or name in known or bool(same_name(name, known))
    if profile and name not in TARGETS:
        return name, runs_on
    if name not in {*TARGETS, *ALIASES}:
        raise UnknownNameError("framework", str(name), [*known, *TARGETS], "Or give a TOML file of your own.")
    target = get_target(name)
    if former not in (None, target):
        raise InputError(f"framework is {name} and runs_on is {runs_on}; allowed: one of them")
    return name if profile else target.profile, target.name


def held_request(setup: Setup, runs_on: str | None, base: str | None = None, **question: Any) -> tuple[Setup, Request]:
    """The setup and what its search is asked (`planner.question.request`), held to a framework of `planner export`.

    base: the user's own recipe, where that framework builds on one. question: as of `planner.question.request`.

    Raises UnknownNameError if planner writes nothing for it; LayoutError if it can run none of the model, or nothing of
    what the user has settled.
    """
    if runs_on is None:
        return request(setup, **question)
    from planner.exporters.plan_export import get_target

    setup, asked = request(setup, **(question | {"any_framework": True}))
    target = get_target(word("runs_on", runs_on))
    target.check_question(setup.model, asked.precision.name.lower(), base)
    target.check_training(CHOICES["train"].plain(dict(asked.fixed.shared).get("train", 0)))
    return setup, replace(asked, fixed=target.only(asked.fixed))
