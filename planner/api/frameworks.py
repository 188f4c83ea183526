"""The value of `--framework`: a profile of figures, a framework that planner writes files for, or both."""

from dataclasses import replace
from typing import Any

from planner.base.errors import UnknownNameError
from planner.base.files import is_path
from planner.base.lookup import same_name
from planner.choices.table import CHOICES
from planner.hardware import framework_names, profile_names
from planner.layouts import Layouts
from planner.question import as_it_has, check_share, load_setup, one_layout, search_request
from planner.search.request import Request
from planner.setup import Setup


def named_framework(name: str | None) -> tuple[str | None, str | None]:
    """Resolve --framework into (profile, export target); None leaves the default.

    A profile's name gives its figures. A `planner export` name also restricts the search to what that framework runs;
    its figures are those of the target's profile, or (None) of the cluster's where the target takes that first.

    Raises UnknownNameError for an unknown framework.
    """
    if name is None:
        return None, None
    from planner.exporters.plan_export import ALIASES, TARGETS, get_target

    if name not in TARGETS and (is_path(name) or same_name(name, framework_names())):
        return name, None
    if name not in {*TARGETS, *ALIASES}:
        known = {*profile_names("frameworks"), *TARGETS}
        raise UnknownNameError("framework", name, known, "Or give a TOML file of your own.")
    target = get_target(name)
    return None if target.cluster_first else target.profile, target.name


def setup_under(model: Any, cluster: Any, framework: str | None, **more: Any) -> Setup:
    """The question that names ask (`planner.question.load_setup`), under a framework by any of its names."""
    from planner.exporters.plan_export import get_target

    profile, export = named_framework(framework)
    setup = load_setup(model, cluster, framework=profile, **more)
    return setup if export is None else replace(get_target(export).own(setup), export=export)


def layout_under(setup: Setup, **choices: Any) -> Layouts:
    """One layout, where nothing is said as its framework has it. Raises as `planner.question.one_layout`."""
    choices = as_it_has(setup, choices)
    layouts = one_layout(setup.cluster, **choices, own_split=setup.framework.layer_split)
    check_share(choices, bool(choices.get("offload_optimizer")), "offload_optimizer")
    if choices.get("sequence_parallel") is None and setup.framework.spreads_tokens:
        return replace(layouts, sequence_parallel=layouts.tp > 1)
    return layouts


def schedules_of(setup: Setup, pp: int) -> tuple[str, ...] | None:
    """The schedules of so many stages that the framework runs, or of an export can write; None: all."""
    from planner.exporters.plan_export import get_target

    _, request = search_request(setup, any_framework=setup.export is not None)
    fixed = request.fixed if setup.export is None else get_target(setup.export).only(request.fixed)
    if fixed.pp is not None and pp not in fixed.pp:
        return ()
    return fixed.schedule or setup.framework.runs.schedule or None


def held_request(setup: Setup, base: str | None = None, **question: Any) -> tuple[Setup, Request]:
    """The setup and what its search is asked (`planner.question.search_request`), held to the setup's export.

    Where no export is named, what no exporter of the framework's family can write of the model is left out too, unless
    any_framework is asked for. base: the user's own recipe, where that framework builds on one. question: as of
    `planner.question.search_request`.

    Raises LayoutError if the framework can run none of the model, or nothing of what the user has settled.
    """
    from planner.exporters.plan_export import TARGETS, get_target
    from planner.exporters.target import allowed, family

    if setup.export is None:
        setup, request = search_request(setup, **question)
        same = [target for target in TARGETS.values() if target.family == family(setup.framework)]
        same = [target for target in same if target.adapters is not None or not request.fixed.train]
        if question.get("any_framework") or not same:
            return setup, request
        return setup, replace(request, fixed=same[0].of_model(request.fixed, setup.model))
    setup, request = search_request(setup, **(question | {"any_framework": True}))
    target = get_target(str(setup.export))
    target.check_question(setup.model, request.precision.name.lower(), base)
    setup = target.in_precision(setup, request.precision.name.lower())
    target.check_training(CHOICES["train"].plain(request.fixed.train))
    target.check_shared(request.fixed.shared)
    target.check_gpus(setup.cluster, request.gpus)
    fixed = allowed(request.fixed, target.title, inner_ring=(1,))
    return setup, replace(request, fixed=target.of_model(target.only(fixed), setup.model))
