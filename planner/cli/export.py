"""`planner export`: a plan as a framework's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.notes import note

if TYPE_CHECKING:
    from planner.exporters.target import Target
    from planner.plan_file import SavedPlan

Base = Annotated[str | None, o.writes("--base", says="torchtitan: your recipe, package.module:function.")]


def command(
    plan: Annotated[Path, typer.Argument(help="A plan, as planner recommend --save writes it.")],
    to: Annotated[
        str,
        o.asks(
            "--to", "megatron, megatron-bridge, deepspeed, torchtitan, torchtitan-toml, accelerate.",
            autocompletion=complete.exports,
        ),
    ],
    output: Annotated[Path | None, o.writes("--output", "-o", says="A file, instead of stdout.")] = None,
    number: Annotated[int, o.asks("--number", "Which of the plan's best layouts.", min=1)] = 1,
    base: Base = None,
    cluster: o.PlanCluster = None,
    network: o.Network = None,
    framework: o.FrameworkName = None,
) -> None:  # fmt: skip
    """Write a plan for a framework, and say what of it the framework can't express.

    What else is given stands in place of the plan's own.

    Example: planner export plan.json --to megatron -o launch.sh
    """
    from planner.exporters.plan_export import get_target
    from planner.plan_file import read_plan

    target, profile = get_target(to), o.profile_of(framework)
    _check_file("--output", output, target)
    saved = read_plan(plan, number=number, cluster=cluster, network=network, framework=profile)
    write(saved, target, output, base, own=profile is None)


def write(plan: SavedPlan, target: Target, output: Path | None, base: str | None = None, *, own: bool = True) -> None:
    """The file and its companions, on stdout without a path; what isn't expressed, on stderr."""
    from planner.exporters.plan_export import export_plan

    done = export_plan(plan, target, path=output, base=base, own=own)
    for text in done.notes:
        note(f"not in {target.title}: {text}")
    if done.warning:
        note(f"WARNING: {done.warning}")
    if output is None:
        typer.echo(done.text, nl=False)
    else:
        done.write(output)


def targets_and_files(exports: list[str]) -> list[tuple[Target, Path]]:
    """Targets and files of `--export FRAMEWORK=FILE`, files checked before long work.

    Raises InputError for another form, UnknownNameError for an unknown framework, OutputError for a file that can't be
    written.
    """
    if not exports:
        return []
    from planner.base.errors import InputError
    from planner.exporters.plan_export import get_target

    out = []
    for text in exports:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise InputError(f"--export is {text!r}; allowed: a framework and a file, such as megatron=launch.sh")
        out.append((get_target(name), Path(file)))
        _check_file("--export", out[-1][1], out[-1][0])
    return out


def _check_file(option: str, file: Path | None, target: Target) -> None:
    """Raises as `check_files`: a file that ends as another framework's, such as .json for a script, is refused."""
    from planner.exporters.plan_export import TARGETS

    another = file is not None and file.suffix in {t.suffix for t in TARGETS.values()} - {target.suffix}
    o.check_files({option: (file, target.suffix, "" if file is None or another else file.suffix)})


def check_base(base: str | None, frameworks: list[str]) -> None:
    """Raises InputError if a recipe is given and none of these frameworks builds on one; UnknownNameError for an
    unknown framework.
    """
    if base is None:
        return
    from planner.base.errors import InputError
    from planner.exporters.plan_export import get_target

    if not any(get_target(name).takes_base for name in frameworks):
        raise InputError(f"--base is {base!r}; allowed: with --framework or --export torchtitan alone")
