"""`planner compare`: a layout under every schedule, or two plans side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o
from planner.cli.choices import filling, takes_layout


@takes_layout("schedule")
def command(
    first: Annotated[str, typer.Argument(metavar="MODEL|PLAN", help="A model, or a plan to set beside another.")],
    second: Annotated[
        Path | None,
        typer.Argument(metavar="plan|cluster", help="The other plan, or in place of --cluster.", show_default=False),
    ] = None,
    gpus: Annotated[int | None, typer.Argument(metavar="gpus", help="In place of --gpus.", show_default=False)] = None,
    cluster: Annotated[str | None, o.asks("--cluster", "A cluster (planner clusters) or a TOML file.")] = None,
    job: o.JobGpus = None,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    *,
    size: o.StepBatch,
    out: o.Output,
    **choices: Any,
) -> None:
    """Set every schedule that is legal for a layout side by side: step time, bubble, memory, what the network carries.

    Schedules with a number of virtual stages or slices of their own get it; others take the given one, or 2.

    Example: planner compare llama-65b --cluster dgx-a100-80gb --tp 8 --pp 8 --dp 2 --global-batch 128

    Of two plans, say what differs, second by second and byte by byte: planner compare plan-a.json plan-b.json
    """
    from planner.api.compared import compare_plans, compare_schedules
    from planner.api.frameworks import setup_under
    from planner.base.errors import InputError
    from planner.base.files import is_path
    from planner.plan_file import is_plan

    asked = gpus or job or size.global_batch or size.batch_tokens
    file = (
        second is not None
        and second.suffix not in ("", ".toml")
        and (is_path(str(second), (".json",)) or second.is_file())
    )
    if second is not None and cluster is None and (asked or not file):
        second, cluster = None, str(second)
    if second is not None:
        profile = o.profile_of(framework)
        plans = compare_plans(Path(first), second, cluster=cluster, network=network, framework=profile)
        out.show(plans)
        return
    if cluster is not None and is_plan(first):
        raise InputError(f"{first}: is a plan, beside --cluster {cluster}; allowed: two plans, or a model on a cluster")
    if cluster is None:
        missing = "a second plan is missing, or --cluster" if Path(first).is_file() else "--cluster is missing"
        raise InputError(f"{first}: {missing}; allowed: two plans, or a model on a cluster")
    setup = setup_under(first, cluster, framework, network=network, seq_len=seq_len)
    row = filling(gpus or job, choices)
    batch = size.sequences(setup.model.seq_len, row["dp"])
    with o.working("simulating every schedule"):
        answer = compare_schedules(setup, global_batch=batch, **row)
    out.show(answer)
