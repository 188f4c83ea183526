"""Towers before a language model, each part under a layout of its own: `planner towers`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Unpack

from planner.api.anchored import trust
from planner.api.answer import Answer
from planner.api.frameworks import held_request
from planner.api.inputs import ClusterLike, ModelLike, SearchChoices, setup_of
from planner.base.errors import InputError, shown
from planner.base.units import GIB, counted, format_bytes, format_seconds
from planner.choices.choice import whole
from planner.costs.memory.fit_chance import chance_in
from planner.models import counts
from planner.models.towers import load_tower
from planner.question import batch_or_usual, check_elsewhere, listed
from planner.report.plain_table import bold, plain_table, stacked
from planner.report.records import estimate_record, question_record
from planner.report.tables import chance_text, closing_lines, layout_text, question_title
from planner.search.request import Request
from planner.search.towers import Found, Tower, fastest
from planner.setup import Setup

MOST_TOWERS, MOST_SEQUENCES = 8, 1_000_000
ALLOWED = "NAME=SEQUENCES or NAME=SEQUENCESxTOKENS of each, such as internvit-6b=7 or config.json=4x1024"
UNMEASURED = (
    "None of these has a tower. Three steps with one were measured under one layout for all (Optimus, arXiv "
    "2408.03505); this gives 25 to 30 % less."
)


def towers(
    model: ModelLike, cluster: ClusterLike, *, gpus: int, towers: Sequence[str], batch: int | None = None,
    framework: str | None = None, frozen: bool = False, **choices: Unpack[SearchChoices],
) -> Answer:  # fmt: skip
    """The fastest layouts of a language model and its towers, each its own, and what one layout for all would take.

    towers: each a model's name or file, a config.json's for its vision part, and its sequences, such as images, in one
    of the language model's, as "internvit-6b=7"; with tokens of each "=7x1024". frozen: no tower is trained. batch:
    sequences of the language model per step; None is about 4M tokens. choices: of the language model, and of the one
    layout for all, as of `planner.recommend`.

    Raises:
        InputError, UnknownNameError, FileFormatError, LayoutError: as `planner.recommend`; or nothing fits together.
    """
    check_elsewhere(choices)
    setup = setup_of(model, cluster, framework)
    each = batch_or_usual(batch, setup.model.seq_len, whole("gpus", gpus))
    return towers_plan(setup, towers, gpus=gpus, batch=each, frozen=frozen, **choices)


def towers_plan(
    setup: Setup, named: Sequence[str], *, gpus: int, batch: int, frozen: bool = False, **choices: Any
) -> Answer:
    """The answer for a question whose setup is known. Raises as `towers`."""
    whole("gpus", gpus)
    whole("global_batch", batch)
    texts = listed("tower", named)
    if not 1 <= len(texts) <= MOST_TOWERS:
        raise InputError(f"tower is given {len(texts)} times; allowed: 1 to {MOST_TOWERS}, each {ALLOWED}")
    setup, request = held_request(setup, gpus=gpus, batch=batch, **choices)
    every = [_tower(text, setup, request, frozen) for text in texts]
    own, uniform = fastest(setup, request, every)
    record = question_record(setup, gpus, batch) | _record(own, setup)
    record["uniform"] = None if uniform is None else _record(uniform, setup)
    record["gain"] = None if uniform is None else uniform.step_s / own.step_s - 1.0
    record["accuracy"] = f"{trust(setup)} {UNMEASURED}"
    return Answer(question_title(setup, gpus, batch), record, _view(record, setup))


def _tower(text: str, setup: Setup, request: Request, frozen: bool) -> Tower:
    """A tower as it is named. Raises InputError for another form, or too many sequences."""
    name, _, size = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    found = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", size)
    if not name or found is None:
        raise InputError(f"tower is {shown(text)}; allowed: {ALLOWED}")
    sequences = whole("sequences of a tower", int(found[1]), most=MOST_SEQUENCES)
    tokens = None if found[2] is None else whole("tokens of a tower", int(found[2]))
    whole("sequences of a tower per step", sequences * request.global_batch)
    return Tower.of(load_tower(name, tokens), setup, request, sequences, frozen)


def _record(found: Found, setup: Setup) -> dict[str, Any]:
    """What was found, as plain values."""
    language, precision = found.language, found.language.layouts.row(0)["precision"]
    flop = float(language.model_flop[0])
    parts = []
    for tower, row, again in found.towers:
        one, frozen, forward = tower.estimate.take([row]), tower.frozen, float(tower.forward_s[row])
        flop += float(one.model_flop[0]) / (3.0 if frozen else 1.0)
        whole_s = float(tower.alone[0][row])
        parts.append({
            "model": tower.setup.model.name, "parameters": int(counts.total_params(tower.setup.model)),
            "sequences": tower.sequences, "tokens": int(tower.setup.model.seq_len), "frozen": frozen,
            "layout": one.layouts.row(0), "forward_s": forward, "forward_again": again,
            "backward_s": whole_s if again else whole_s - forward,
        })  # fmt: skip
    peak = float(language.layouts.gpus[0] * language.peak_flops[0])
    trained = any(not part["frozen"] for part in parts)
    return {
        "step_time_s": found.step_s, "mfu": flop / (found.step_s * peak), "memory_gib": found.memory_bytes / GIB,
        "fit_chance": float(chance_in(setup, precision, found.memory_bytes)), "towers": parts,
        "language": estimate_record(language, 0, setup.cluster), "outputs_to_language_s": found.to_language_s,
        "gradients_back_s": found.to_language_s if trained else 0.0,
    }  # fmt: skip


def _figures(r: dict[str, Any], setup: Setup) -> str:
    memory, whole_memory = (format_bytes(x) for x in (r["memory_gib"] * GIB, setup.cluster.accelerator.memory_bytes))
    return (
        f"{format_seconds(r['step_time_s'])} per step, MFU {r['mfu']:.1%} with whole attention, {memory} of "
        f"{whole_memory} per GPU (fits in {chance_text(r['fit_chance'])} of such cases)"
    )


def _phases(r: dict[str, Any]) -> Any:
    """The phases in their order, and what each takes."""
    table, language = plain_table("phase", "seconds", numbers=(1,)), r["language"]
    rows = [(f"{t['model']} forward", t["forward_s"]) for t in r["towers"]]
    rows += [("outputs to the language model", r["outputs_to_language_s"])]
    rows += [("the language model's step", language["step_time_s"]), ("gradients back", r["gradients_back_s"])]
    rows += [(f"{t['model']} {'forward again, ' * t['forward_again']}backward, update", t["backward_s"])
             for t in r["towers"] if not t["frozen"]]  # fmt: skip
    for name, seconds in rows:
        if seconds:
            table.add_row(name, f"{seconds:.4g}")
    return table


def _layouts(r: dict[str, Any], name: str) -> Any:
    """Each part's layout."""
    table = plain_table("part", "layout")
    for part in r["towers"]:
        table.add_row(part["model"], layout_text(part["layout"]))
    table.add_row(name, layout_text(r["language"]["layout"]))
    return table


def _view(r: dict[str, Any], setup: Setup) -> Any:
    """The layouts with their phases; then one layout for all, and how much slower it is."""
    name, uniform = setup.model.name, r["uniform"]
    said = [f"{counted(t['sequences'], 'sequence')} of {t['tokens']:,} tokens of {t['model']} "
            f"({t['parameters'] / 1e9:.3g}B{', frozen' * t['frozen']})" for t in r["towers"]]  # fmt: skip
    lines = [
        f"with each of its sequences: {'; '.join(said)}", "", bold(f"Each part its own layout: {_figures(r, setup)}"),
        _layouts(r, name), "", _phases(r), "",
    ]  # fmt: skip
    if uniform is None:
        lines += ["One layout for all: none is legal for every part and fits."]
    else:
        gain = r["gain"]
        verdict = f"{abs(gain):.1%} {'slower' if gain > 0 else 'faster'} per step than layouts of their own"
        lines += [
            bold(f"One layout for all: {verdict}; {_figures(uniform, setup)}"), _layouts(uniform, name), "",
            "There a tower's layers are spread evenly over the same stages, each part with its own virtual stages. "
            "Frameworks put a tower on the first stage, which is no faster.",
        ]  # fmt: skip
    return stacked(*lines, *closing_lines((), r["accuracy"]))
