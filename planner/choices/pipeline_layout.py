"""A pipeline's stages given layer by layer, as Megatron-Core's --pipeline-model-parallel-layout writes them.

`Et*3|(tt|)*29m|L`: E embedding, t a layer, m a module of multi-token prediction, L head and loss; | parts virtual
stages, *n repeats a letter or a group in parentheses, commas mean nothing (Megatron-Core,
transformer/pipeline_parallel_layer_layout.py). Stage i of p ranks is the (i // p)-th chunk of a rank, which the
schedule says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from planner.base.errors import InputError, shown

MOST_LETTERS = 100_000
"""Most characters of an unrolled text: far over any real one."""
LETTERS = "letters E t m L, | between stages, and *n behind a letter or a group in parentheses"
STAGE = re.compile(r"E?t*m*L?")


@dataclass(frozen=True)
class PipelineLayout:
    """Layers, and modules of multi-token prediction, of every virtual stage in the order of the model."""

    layers: tuple[int, ...]
    modules: tuple[int, ...]


@lru_cache(maxsize=1024)
def parse_pipeline_layout(text: str) -> PipelineLayout:
    """The stages that a text gives.

    Raises InputError if the text is none: another letter, too long, an embedding that is not first, a loss that is not
    last, modules before layers or on several stages.
    """
    stages = _unrolled(text).split("|")

    def refused(rule: str) -> InputError:
        return InputError(f"pipeline_layout is {shown(text)}; {rule}")

    if wrong := sorted(set("".join(stages)) - set("EtmL")):
        raise refused(f"{shown(wrong[0])} has no meaning there; allowed: {LETTERS}")
    whole = "".join(stages)
    if whole.count("E") != 1 or whole.count("L") != 1 or stages[0][:1] != "E" or stages[-1][-1:] != "L":
        raise refused("allowed: one E, the first letter, and one L, the last")
    if not all(STAGE.fullmatch(stage) for stage in stages) or "t" in whole.lstrip("Et"):
        raise refused("allowed: all modules m behind all layers t")
    if sum("m" in stage for stage in stages) > 1:
        raise refused("allowed: all modules m on one stage")
    return PipelineLayout(tuple(s.count("t") for s in stages), tuple(s.count("m") for s in stages))


def _unrolled(text: str) -> str:
    """The text without repetitions: groups in parentheses first, then letters."""
    out = re.sub(r"[\s,]", "", text)
    for pattern in (r"\(([^)]+)\)\*([0-9]{1,6})", r"(.)\*([0-9]{1,6})"):
        if len(out) + sum(len(part) * int(times) for part, times in re.findall(pattern, out)) > MOST_LETTERS:
            raise InputError(f"pipeline_layout is {shown(text)}; allowed: up to {MOST_LETTERS} letters in all")
        out = re.sub(pattern, lambda m: m.group(1) * int(m.group(2)), out)
    return out


def pipeline_layout_text(layers: Sequence[int], modules: Sequence[int] | None = None) -> str:
    """Stages as Megatron-Core writes them, equal ones on end as (stage|)*n. Two stages or more.

    modules: of multi-token prediction on each stage; None: none.
    """
    each = modules or [0] * len(layers)
    first, *middle, last = [(f"t*{n}" if n > 1 else "t" * n) + "m" * more for n, more in zip(layers, each, strict=True)]
    out = f"E{first}|"
    for text, same in groupby(middle):
        n = len(list(same))
        out += f"({text}|)*{n}" if n > 2 else f"{text}|" * n
    return f"{out}{last}L"
