"""A question as the page asks it: every field a text, as it stands in the page's address."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.api.inputs import Cluster, Model
from planner.api.plan import Plan
from planner.api.recommended import recommend
from planner.base.errors import InputError, PlannerError, shown
from planner.choices.choice import Choice, flag, number, option_words, switch, whole
from planner.choices.table import CHOICES, SETTLED, SHARED
from planner.serve.fields import CHANGED, FIELDS, batch_of, decimal

MOST_GPUS, MOST_BATCH = 100_000, 1_000_000
CONFIG = "config.json"
_cluster = lru_cache(maxsize=64)(lambda name, network, figures: Cluster(name, network=network, figures=dict(figures)))


@dataclass(frozen=True, eq=False)
class AskedQuestion:
    """The page's question, read.

    model, cluster: what is trained, on what. gpus; batch: sequences per optimizer step. given: the other arguments of
    `planner.recommend` that the user gave. texts: the question as it came, without empty fields.
    """

    model: Model
    cluster: Cluster
    gpus: int
    batch: int
    given: Mapping[str, Any]
    texts: Mapping[str, str]

    @property
    def tokens(self) -> float | None:
        """Tokens to train on; None for the compute-optimal tokens."""
        return FIELDS["tokens"].read(self.texts["tokens"]) if "tokens" in self.texts else None

    def plan(self) -> Plan:
        """The answer. Raises as `planner.recommend`."""
        return recommend(self.model, self.cluster, gpus=self.gpus, batch=self.batch, **self.given)

    @property
    def command(self) -> str:
        """The command line that asks the same; a pasted config.json stands in a file of that name."""
        texts = self.texts
        words = ["planner", "recommend", CONFIG if "config" in texts else texts["model"], "--cluster", texts["cluster"]]
        words += ["--gpus", str(self.gpus), "--global-batch", str(self.batch)]
        for name, option in (("network", "--network"), ("seq_len", "--seq-len")):
            words += [option, texts[name]] if name in texts else []
        for name, value in figures_of(texts).items():
            words += ["--figure", f"{name}={value:.12g}"]
        for name, value in self.given.items():
            own = FIELDS[name].option if name in FIELDS else ""
            option = own or f"--{name.replace('_', '-')}"
            words += option_words(option, value)
        return shlex.join(words)

    @property
    def python(self) -> str:
        """The Python that asks the same."""
        length = {"seq_len": self.model.seq_len} if "seq_len" in self.texts else {}
        link = {"network": self.texts["network"]} if "network" in self.texts else {}
        model = _call("Model", CONFIG if "config" in self.texts else self.texts["model"], length)
        figures = figures_of(self.texts)
        cluster = _call("Cluster", self.texts["cluster"], link | ({"figures": figures} if figures else {}))
        given = "".join(f", {name}={value!r}" for name, value in self.given.items())
        return (
            "from planner import Cluster, Model, recommend\n\n"
            f"plan = recommend({model}, {cluster}, gpus={self.gpus}, batch={self.batch}{given})\nprint(plan)\n"
        )


def _call(kind: str, name: str, more: Mapping[str, Any]) -> str:
    words = [repr(name), *(f"{key}={value!r}" for key, value in more.items())]
    return f"{kind}({', '.join(words)})"


def read_question(texts: Mapping[str, str]) -> AskedQuestion:
    """The question that texts by field ask; an empty text is a field that isn't given.

    A choice is its value, or several with commas, or those that are forbidden after an exclamation mark: `!8`.
    No text is ever taken for a path: names are those of the shipped models, clusters, networks and frameworks.

    Raises InputError, UnknownNameError or FileFormatError if a field is unknown, missing, or its value is not allowed.
    """
    said = {name: text.strip() for name, text in texts.items() if text.strip()}
    known = [*FIELDS, *SETTLED, *SHARED]
    if unknown := next((name for name in said if name not in known), None):
        raise InputError(f"field {shown(unknown)} is unknown; allowed: {', '.join(known)}")
    for name, text in said.items():
        if name in FIELDS:
            FIELDS[name].check(text)
            FIELDS[name].read(text)
    if missing := next((FIELDS[n] for n in ("cluster", "gpus") if n not in said), None):
        raise InputError(f"{missing.label} is missing; allowed: {missing.allowed}")
    length = None if "seq_len" not in said else FIELDS["seq_len"].read(said["seq_len"])
    model = _model(said, length)
    given: dict[str, Any] = {name: f.read(said[name]) for name, f in FIELDS.items() if f.argument and name in said}
    given = {name: value for name, value in given.items() if value is not False}
    exclude: list[str] = []
    for name in (*SHARED, *SETTLED):
        if name in said:
            value = _chosen(CHOICES[name], said[name], exclude)
            given |= {} if value is None else {name: value}
    gpus = whole("gpus", number(said["gpus"]), most=MOST_GPUS)
    return AskedQuestion(
        model=model,
        cluster=_cluster(said["cluster"], network=said.get("network"), figures=tuple(figures_of(said).items())),
        gpus=gpus,
        batch=whole("batch", batch_of(said, model.seq_len, gpus), most=MOST_BATCH),
        given=given | ({"exclude": exclude} if exclude else {}),
        texts=said,
    )


def figures_of(said: Mapping[str, str]) -> dict[str, float]:
    """The figures of the cluster that are given, by dotted name."""
    return {name: FIELDS[name].read(said[name]) for name in CHANGED if name in said}


def _model(said: Mapping[str, str], length: int | None) -> Model:
    if "config" in said:
        with pasted(said["config"], CONFIG) as path:
            return Model(path, seq_len=length)
    if "model" not in said:
        raise InputError("Model is missing; allowed: a preset, or a config.json that you paste")
    return Model(said["model"], seq_len=length)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="planner-serve-")


@contextmanager
def pasted(text: str, name: str) -> Iterator[Path]:
    """A pasted file in a folder of our own, for the reader of such files, whose faults then name it so."""
    with TemporaryDirectory(dir=_folder().name) as own:
        path = Path(own) / "pasted-model" / name
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            yield path
        except PlannerError as error:
            raise InputError(str(error).replace(str(path), name)) from None


def _chosen(choice: Choice, text: str, exclude: list[str]) -> Any:
    """The values that a search may take of a choice; None where the text forbids some, which go to `exclude`."""
    words = [word.strip() for word in text.removeprefix("!").split(",")]
    if choice.shared:
        return decimal(choice.name, text) if choice.kind is float else text
    if text.startswith("!"):
        exclude += [f"{choice.name}={word}" for word in words]
        return None
    if choice.kind is bool:
        return flag(choice.name, switch(text))
    return [number(word) if choice.kind is int else word for word in words]
