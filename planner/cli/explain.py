"""`planner explain`: what limits a layout, and what would help."""

from __future__ import annotations

from typing import Any

from planner.cli import assumed as a
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.words import in_words


@in_words
@searches
@a.assumes("mtbf_hours", "restart_minutes", "storage_gbyte_per_s")
def command(
    model: o.Model,
    cluster: o.ClusterName,
    gpus: o.Gpus,
    global_batch: o.GlobalBatch = None,
    batch_tokens: o.BatchTokens = None,
    tokens: a.Tokens = None,
    network: o.Network = None,
    nics_per_node: o.Nics = None,
    framework: o.FrameworkName = None,
    runs_on: o.RunsOn = None,
    seq_len: o.SeqLen = None,
    critical_batch_law: a.BatchLawName = "zhang-2024",
    json: o.Json = False,
    *,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """Elasticities of the best layout's step and training to hardware, batch, failures; its traffic against links.

    Example: planner explain gpt3-175b --cluster selene --gpus 1024 --global-batch 1536
    """
    from planner.api.training import explain
    from planner.question import load_setup
    from planner.training_time.goal import goal

    framework, runs_on = o.framework(framework, runs_on)
    setup = load_setup(
        model, cluster, network=network, framework=framework, seq_len=seq_len, nics_per_node=nics_per_node
    )
    aim = goal(setup.model, tokens=tokens, batch_law=critical_batch_law)
    batch = o.batch(global_batch, batch_tokens, setup.model.seq_len)
    with o.working("searching every legal layout"):
        answer = explain(setup, aim, given, gpus=gpus, batch=batch, runs_on=runs_on, **choices)
    o.warn_of_length(model, setup.model, seq_len)
    o.show(answer, json)
