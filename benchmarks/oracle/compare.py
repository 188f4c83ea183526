"""Ours beside theirs, of what is recorded: python benchmarks/oracle/compare.py [FRAMEWORK [PART OF A TITLE]].

A difference has a name and a size that follows from the configuration (`differences.py`); what is left counts. With a
part of a title the layer's kept storages are listed, operator by operator.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import differences
import ours
from configurations import title

RECORDED = Path(__file__).parents[2] / "tests" / "oracle" / "recorded"
PROFILES = {
    "torchtitan": "torchtitan", "megatron-core": "megatron-core", "transformers": "transformers",
    "deepspeed": "transformers-deepspeed",
}  # fmt: skip
"""planner's profile of each framework."""
GROUPS = {
    "tp": "tensor", "cp": "context", "ep": "expert", "etp": "tensor", "fsdp": "sharding", "efsdp": "sharding",
}  # fmt: skip
"""What planner calls a framework's group."""


def recorded(framework: str) -> list[dict[str, Any]]:
    """The recorded configurations of a framework, each with what was asked and seen."""
    return list(json.loads((RECORDED / f"{framework}.json").read_text(encoding="utf-8"))["runs"])


def sizes(asked: dict[str, Any]) -> dict[str, int]:
    """Ranks of each of a framework's groups."""
    tp, cp, ep = (asked.get(name, 1) for name in ("tp", "cp", "ep"))
    shards = asked["gpus"] // tp // asked.get("dp_replicate", 1)
    of_experts = asked["gpus"] // asked.get("dp_replicate", 1) // ep
    return {"tp": tp, "cp": cp, "ep": ep, "fsdp": shards, "efsdp": of_experts, "etp": asked.get("etp", tp)}


def their_bytes(asked: dict[str, Any], layer: dict[str, Any]) -> dict[str, float]:
    """Bytes that a rank sends of a layer, by planner's groups and passes: of a whole tensor, all but its own part.

    An all-reduce sends it twice. What replicas of a shard sum is left out: planner has it apart.
    """
    found: dict[str, float] = {}
    for key, size in layer["sent_bytes"].items():
        phase, kind, group = key.split()
        if group not in GROUPS:
            continue
        n = sizes(asked)[group]
        name = GROUPS[group]
        if name == "sharding":
            name = "gather" if kind == "all_gather" else "reduce"
        wire = size * (n - 1) / n * (2.0 if kind == "all_reduce" else 1.0)
        found[f"{phase} {name}"] = found.get(f"{phase} {name}", 0.0) + wire
    return found


def figures(framework: str, run: dict[str, Any]) -> list[tuple[str, float, float, dict[str, float]]]:
    """(what, ours, theirs, named differences in theirs) of a configuration."""
    asked, layer = run["asked"], run["layer"]
    mine = ours.observe(differences.as_asked(framework, asked), PROFILES[framework])
    named = differences.named(framework, asked)
    rows = [("parameters", mine["parameters"] if framework != "megatron-core" else mine["rank_parameters"])]
    theirs = {"parameters": float(layer["parameters"])}
    for phase in ("forward", "backward"):
        rows.append((f"{phase} FLOP", mine["flops"][phase]))
        theirs[f"{phase} FLOP"] = float(
            sum(layer["flops"].get(f"{phase} {kind}", 0) for kind in ("product", "grouped"))
        )
    rows.append(("kept bytes", mine["kept_bytes"]))
    theirs["kept bytes"] = float(layer["kept_bytes"])
    sent = their_bytes(asked, layer)
    for name in sorted({*sent, *mine["sent_bytes"]}):
        if name.split()[1] in ("gather", "reduce") and framework == "megatron-core":
            continue  # its optimizer's, once a step: no part of a pass
        rows.append((f"{name} bytes", mine["sent_bytes"].get(name, 0.0)))
        theirs[f"{name} bytes"] = sent.get(name, 0.0)
    return [(what, value, theirs[what], named.get(what, {})) for what, value in rows]


def left(value: float, theirs: float, named: dict[str, float]) -> float:
    """What no name explains, over theirs."""
    return (value + sum(named.values()) - theirs) / max(abs(theirs), 1.0)


def main(framework: str = "", part: str = "") -> None:
    """Print ours beside theirs."""
    for name in [framework] if framework else PROFILES:
        for run in recorded(name):
            if part and part not in title(run["asked"]):
                continue
            print(f"\n{name}: {title(run['asked'])}")
            for what, value, theirs, named in figures(name, run):
                why = "; ".join(f"{reason} {size:+.4g}" for reason, size in named.items())
                print(f"  {what:24} {value:14.6g} {theirs:14.6g} {left(value, theirs, named):+8.2%}  {why}")
            if part:
                for size, operator, shape in sorted(run["layer"]["kept"], reverse=True):
                    print(f"    {size / 2**20:10.2f} MiB  {operator}  {shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
