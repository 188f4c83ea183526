"""One layer's figures from two models that differ by a layer: what `record.Recorder` saw of both, less to more."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Living = list[tuple[int, str, str, str]]


@dataclass
class Seen:
    """What one run of a model showed. living: storages that live between the passes, of the middle layer by name."""

    parameters: int
    sharded_parameters: int
    flops: Counter[str]
    sent: Counter[str]
    living: Living
    logits_peak_bytes: int = 0
    other: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(recorder: Any, model: Any, living: Living, world: dict[str, int]) -> Seen:
        """Of a recorder and its model. world: size of each group by name."""
        flops: Counter[str] = Counter()
        for (phase, kind, _), n in recorder.flops.items():
            flops[f"{phase} {kind}"] += n
        sent: Counter[str] = Counter()
        for (phase, kind, group), size in recorder.sent.items():
            sent[f"{phase} {kind} {group}"] += size
        whole = sum(p.numel() for p in model.parameters())
        local = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.parameters())
        return Seen(parameters=whole, sharded_parameters=local, flops=flops, sent=sent, living=living)


def layer(less: Seen, more: Seen, middle: str) -> dict[str, Any]:
    """The layer that `more` has and `less` has not. middle: the name of a layer with one on either side in `more`."""
    found = [entry for entry in more.living if entry[2] == middle or entry[2].startswith(middle + ".")]
    return {
        "parameters": more.parameters - less.parameters,
        "sharded_parameters": more.sharded_parameters - less.sharded_parameters,
        "flops": _less(more.flops, less.flops),
        "sent_bytes": _less(more.sent, less.sent),
        "kept_bytes": sum(e[0] for e in more.living) - sum(e[0] for e in less.living),
        "kept": [[size, f"{_short(where, middle)} {name}".strip(), shape] for size, name, where, shape in found],
    }


def ends(less: Seen, layers: int, one: dict[str, Any]) -> dict[str, Any]:
    """What is left of `less` without its layers: embedding, last norm, head and loss."""
    return {
        "parameters": less.parameters - layers * one["parameters"],
        "flops": {k: v for k in less.flops if (v := less.flops[k] - layers * one["flops"].get(k, 0))},
        "sent_bytes": {k: v for k in less.sent if (v := less.sent[k] - layers * one["sent_bytes"].get(k, 0))},
    }


def _less(more: Counter[str], less: Counter[str]) -> dict[str, int]:
    return {key: more[key] - less[key] for key in sorted(more) if more[key] != less[key]}


def _short(where: str, middle: str) -> str:
    where = where.removeprefix(middle).lstrip(".")
    return re.sub(r"_checkpoint_wrapped_module\.?", "", where).rstrip(".")
