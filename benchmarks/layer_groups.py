"""What a layout for each group of layers could gain at most: python benchmarks/layer_groups.py [CASE ...]

Each group of layers, alone on all GPUs, gets the layout that is best for it; nothing is paid to bring activations from
one layout to the next, no rank waits for another group's, and a preset's layers are cut evenly whatever their number.
Groups share the memory of a GPU. By brute force over every legal layout with 1F1B, interleaved or not. Beside it the
best single layout, by the same estimates: of a preset as a whole; of a tower before a language model the best that both
have in common, each spread over all stages. Of a tower also what is left where only micro-batch, sharding, sequence
parallelism and recomputation are each group's own, and degrees are common.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import Transformer, from_shape, load_model
from planner.question import search_request
from planner.search.space import whole_space
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate

CLUSTER, FRAMEWORK = load_cluster("dgx-h100"), load_framework("megatron-core")
CAPACITY = CLUSTER.accelerator.memory_bytes - FRAMEWORK.reserved_bytes
SCHEDULES = ("1f1b", "interleaved")
DEGREES = ("dp", "tp", "pp", "cp")
ALIKE = (*DEGREES, "zero", "sequence_parallel", "recompute", "micro_batch")
Points = tuple[NDArray[Any], NDArray[Any]]
"""Seconds and bytes of layouts of which none is better than another in both."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model's groups of layers, with the sequences of each in one of the batch, and the share of its layers that are.

    preset: the model of all groups; "" where planner has none.
    ends: whether embedding and head are a group of their own. choices: what all layouts have.
    """

    gpus: int
    batch: int
    groups: Sequence[tuple[Transformer, int, float]]
    preset: str = ""
    ends: bool = True
    choices: dict[str, Any] = field(default_factory=dict)


def front(seconds: Any, size: Any) -> Points:
    """The points that fit and are not worse than another, the fastest first."""
    order = np.lexsort((size, seconds))
    seconds, size = seconds[order], size[order]
    less = np.concatenate([[np.inf], np.minimum.accumulate(size)[:-1]])
    kept = (size < less) & (size <= CAPACITY)
    return seconds[kept], size[kept]


def together(fronts: Iterable[Points]) -> float:
    """Least seconds of a point of each front whose bytes fit together; inf where none do."""
    both = (np.zeros(1), np.zeros(1))
    for more in fronts:
        both = front(*(np.add.outer(a, b).ravel() for a, b in zip(both, more, strict=True)))
    return float(both[0].min(initial=np.inf))


def layouts_of(model: Transformer, case: Case, sequences: int = 1, **choices: Any) -> tuple[Setup, Layouts]:
    """Every legal layout of a group alone on all GPUs."""
    settled = {"schedule": SCHEDULES, **case.choices, **choices}
    setup = Setup(model, CLUSTER, FRAMEWORK)
    setup, request = search_request(setup, gpus=case.gpus, batch=case.batch * sequences, **settled)
    return setup, whole_space(setup.model, setup.cluster, request)


def points(found: Estimate) -> Points:
    """Seconds and bytes of a group's layouts; what a step takes once, whatever it trains, left out."""
    return found.step_time_s - FRAMEWORK.host_step_s, found.memory_bytes - FRAMEWORK.reserved_bytes


def ends_of(model: Transformer, case: Case) -> Points:
    """Embedding and head alone: what a layer of no vocabulary lacks, without a pipeline and with hidden reductions."""
    one = replace(model, num_layers=1, num_dense_layers=1, num_experts=0, top_k=0, num_window_layers=0)
    setup, layouts = layouts_of(one, case, pp=1)
    found = estimate(setup, layouts), estimate(replace(setup, model=replace(one, vocab=128)), layouts)
    seconds = [f.time.but_bubble_s - f.time.data_comm_s for f in found]
    return front(np.maximum(seconds[0] - seconds[1], 0.0), found[0].memory_bytes - found[1].memory_bytes)


def shared_best(tables: Sequence[tuple[Layouts, Points, int]], alike: Sequence[str]) -> float:
    """Least seconds where some choices are the same of all groups; the micro-batch, in sequences of the batch."""
    of_key: list[dict[tuple[int, ...], NDArray[Any]]] = []
    for layouts, _, sequences in tables:
        own = {"micro_batch": layouts.micro_batch / sequences}
        columns = np.stack([own.get(name, getattr(layouts, name)) for name in alike], axis=1)
        keys, index = np.unique(columns, axis=0, return_inverse=True)
        rows = np.split(np.argsort(index.ravel(), kind="stable"), np.cumsum(np.bincount(index.ravel()))[:-1])
        of_key.append(dict(zip(map(tuple, keys.tolist()), rows, strict=True)))
    common = set(of_key[0]).intersection(*of_key[1:])
    if not common:
        return np.inf

    def least(key: Any) -> float:
        return sum(float(p[0][rows[key]].min()) for (_, p, _), rows in zip(tables, of_key, strict=True))

    best = np.inf
    for key in sorted(common, key=least):
        if least(key) >= best:
            break
        some = (front(p[0][rows[key]], p[1][rows[key]]) for (_, p, _), rows in zip(tables, of_key, strict=True))
        best = min(best, together(some))
    return best


def bounds(case: Case) -> tuple[float, float, float]:
    """Seconds of a step with the best single layout, with common degrees, and the least with one for each group."""
    tables = []
    for model, sequences, share in case.groups:
        setup, layouts = layouts_of(model, case, sequences)
        seconds, size = points(estimate(setup, layouts))
        tables.append((layouts, (share * seconds, share * size), sequences))
    fronts = [front(*p) for _, p, _ in tables]
    if case.ends:
        fronts.append(ends_of(load_model(case.preset), case))
    if case.preset:
        single = degrees = together([front(*points(estimate(*layouts_of(load_model(case.preset), case))))])
    else:
        single, degrees = (shared_best(tables, alike) for alike in (ALIKE, DEGREES))
    least = min(single, together(fronts))  # one for all is one for each
    once = FRAMEWORK.host_step_s
    return single + once, degrees + once, least + once


def parts(name: str, *layers: int, dense: int = 0) -> list[tuple[Transformer, int, float]]:
    """So many layers of a model in each group, with next to no vocabulary; the first group may be the dense layers.

    They are part of a number of layers that stages share evenly.
    """
    whole = -(-load_model(name).num_layers // 16) * 16
    model = replace(load_model(name), vocab=128, tied=False)
    out = []
    for i, count in enumerate(layers):
        windows = round(model.num_window_layers * whole / model.num_layers)
        plain = not model.num_experts or (dense and i == 0)
        lacks = {"num_experts": 0, "top_k": 0, "num_shared_experts": 0, "expert_groups": 0, "top_k_groups": 0}
        group = replace(model, num_layers=whole, num_dense_layers=whole if plain else 0, num_window_layers=windows)
        out.append((replace(group, **lacks) if plain and model.num_experts else group, 1, count / whole))
    return out


def tower(layers: int, hidden: int, ffn: int, heads: int, tokens: int, images: int) -> tuple[Transformer, int, float]:
    """A vision transformer's layers, and so many images a sequence."""
    shape = from_shape(family="gpt", layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=heads, vocab=128,
                       seq_len=tokens)  # fmt: skip
    return replace(shape, tied=False, dropout=False), images, 1.0


def language(name: str, seq_len: int, **sizes: int) -> tuple[Transformer, int, float]:
    """A language model, its embedding and head included."""
    return replace(load_model(name), seq_len=seq_len, **sizes), 1, 1.0


EIGHT = {"tp": [1, 2, 4, 8]}
CASES = {
    "llama2-70b, 256 GPUs": Case(gpus=256, batch=1024, groups=parts("llama2-70b", 80), preset="llama2-70b"),
    "the same, quarters of the layers apart": Case(
        gpus=256, batch=1024, groups=parts("llama2-70b", 20, 20, 20, 20), preset="llama2-70b"
    ),
    "llama3-405b (126 layers), 1,024 GPUs": Case(
        gpus=1024, batch=1024, groups=parts("llama3-405b", 126), preset="llama3-405b", choices=EIGHT
    ),
    "gemma3-27b (vocabulary 262k), 256 GPUs": Case(
        gpus=256, batch=1024, groups=parts("gemma3-27b", 62), preset="gemma3-27b"
    ),
    "gemma2-9b (vocabulary 256k), 64 GPUs": Case(
        gpus=64, batch=512, groups=parts("gemma2-9b", 42), preset="gemma2-9b"
    ),
    "deepseek-v3 (3 dense layers before 58), 2,048 GPUs": Case(
        gpus=2048, batch=15360, groups=parts("deepseek-v3", 3, 58, dense=3), preset="deepseek-v3",
        choices={**EIGHT, "cp": 1, "ep": [1, 8, 16, 32, 64], "zero": 1, "micro_batch": [1, 2, 4],
                 "pp": [1, 2, 4, 8, 16]},
    ),
    "qwen2-72b with its tower of 0.7B, 4 images of 1,024 tokens, 256 GPUs": Case(
        gpus=256, batch=512, groups=[tower(32, 1280, 5120, 16, 1024, 4), language("qwen2-72b", 8192)], ends=False
    ),
    "yi-34b with InternViT-6B (25 heads), 7 images of 1,024 tokens, 256 GPUs": Case(
        gpus=256, batch=512, groups=[tower(45, 3200, 12800, 25, 1024, 7), language("yi-34b", 4096)], ends=False
    ),
    "the same tower with 32 heads": Case(
        gpus=256, batch=512, groups=[tower(45, 3200, 12800, 32, 1024, 7), language("yi-34b", 4096)], ends=False
    ),
    "llama3.1-70b at 131,072 tokens with a tower of 0.7B, 32 images, 256 GPUs": Case(
        gpus=256, batch=64, groups=[tower(32, 1280, 5120, 16, 1024, 32), language("llama3.1-70b", 131072)], ends=False
    ),
    "an encoder of 9B before a decoder of 2B (gemma2), 64 GPUs": Case(
        gpus=64, batch=512, groups=[language("gemma2-9b", 4096), language("gemma2-2b", 4096)], ends=False
    ),
    "an encoder of 8B on 16,384 tokens before a decoder of 8B on 1,024 (llama3), 64 GPUs": Case(
        gpus=64, batch=512, groups=[language("llama3-8b", 16384), language("llama3-8b", 1024)], ends=False
    ),
}  # fmt: skip


def main() -> None:
    """A line a case."""
    for name, case in CASES.items():
        if not sys.argv[1:] or any(word in name for word in sys.argv[1:]):
            single, degrees, least = bounds(case)
            left = "" if case.preset else f", {degrees / least - 1.0:5.1%} with common degrees"
            print(f"{name:84s} {single:7.3f} s, at best {least:7.3f} s: {single / least - 1.0:5.1%}{left}", flush=True)


if __name__ == "__main__":
    main()
