"""The fields of the page's form: those of the question here, those of the layout from the table of choices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.base.errors import InputError, shown
from planner.base.units import parse_number
from planner.choices.choice import Choice, length, parsed, tokens
from planner.choices.enumerations import Attention, Precision, names
from planner.choices.table import CHOICES, SETTLED, SHARED
from planner.exporters.plan_export import TARGETS
from planner.hardware import profile_names
from planner.models import model_names
from planner.question import batch_of_tokens, batch_or_usual
from planner.schedules import SCHEDULES
from planner.search import OBJECTIVES

SEQUENCES, TOKENS = "sequences", "tokens"


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the question.

    among: the names that it may have; None where it is no name. read: the text as an argument of the API.
    option: what the command line calls it, unless by its name.
    """

    name: str
    label: str
    says: str
    group: str
    read: Callable[[str], Any] = str
    among: Callable[[], list[str]] | None = None
    default: str = ""
    option: str = ""
    kind: str = "text"

    @property
    def argument(self) -> bool:
        """Whether it goes to `planner.recommend` by its name."""
        return self.group in (ROOM, MORE)

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self.says or "a value" if self.among is None else ", ".join(self.among())

    def check(self, text: str) -> None:
        """Raises InputError if the text is not among the names."""
        if self.among is not None and text not in self.among():
            raise InputError(f"{self.label} is {shown(text)}; allowed: {self.allowed}")


def decimal(name: str, text: str) -> float:
    """A number. Raises InputError if the text is none; the message names the field."""
    return parsed(name, text, partial(parse_number, kind=float), "a number")


def _on(text: str) -> bool:
    return text == "on"


def batch_of(said: Mapping[str, str], seq_len: int, gpus: int) -> Any:
    """Sequences per optimizer step, from the fields of the batch; of tokens the nearest number that divides well.

    As with --global-batch and --batch-tokens, sequences are a plain number, 4M is of tokens, and nothing is about 4M.

    Raises InputError if the text is no number, or less than one sequence.
    """
    if "batch" not in said:
        return batch_or_usual(None, seq_len, gpus)
    if said.get("batch_in") == TOKENS:
        return batch_of_tokens("batch", tokens("batch", said["batch"]), seq_len, gpus)
    number = partial(parse_number, kind=int)
    return parsed("batch", said["batch"], number, "sequences, such as 1024; 4M is a batch in tokens")


ASK, OWN = "The question", "Network, tokens, a model of your own"
ROOM, MORE = "Memory", "Precision, software, objective"
FIGURES = "Figures of the cluster"
CHANGED = {
    "accelerator.memory_gib": "Memory per GPU, GiB",
    "accelerator.memory_bandwidth_gbyte_per_s": "Memory bandwidth, GB/s",
    "accelerator.peak_tflops.bf16": "Peak bf16, TFLOP/s",
    "accelerator.price_usd_per_hour": "Price per GPU-hour, USD",
    "gpus_per_node": "GPUs per node",
    "nics_per_node": "NICs per node",
    "node_link.bandwidth_gbyte_per_s": "In a node, GB/s per GPU",
    "network.bandwidth_gbit_per_s": "Network, Gb/s per NIC",
}
"""Figures of a cluster that the page lets one change, as the form calls them."""
FIELDS: Mapping[str, Field] = {f.name: f for f in (
    Field(name="model", label="Model", says="", group=ASK, among=model_names, default="llama2-70b"),
    Field(name="cluster", label="Cluster", says="", group=ASK,
          among=partial(profile_names, "clusters"), default="dgx-h100"),
    Field(name="gpus", label="GPUs", says="A whole number.", group=ASK, default="256", kind="number"),
    Field(name="seq_len", label="Sequence, tokens", says="8192 or 128k; else the model's.", group=ASK,
          read=partial(length, "seq_len")),
    Field(name="batch", label="Batch per step", says="Such as 1024 sequences; else about 4M tokens.", group=ASK,
          default="1024"),
    Field(name="batch_in", label="Batch in", says="", group=ASK, among=lambda: [SEQUENCES, TOKENS], default=SEQUENCES),
    Field(name="network", label="Network", says="Between nodes, instead of the cluster's own.", group=OWN,
          among=partial(profile_names, "links")),
    Field(name="tokens", label="Tokens to train on", says="Such as 15T, for days and dollars; else compute-optimal.",
          group=OWN, read=partial(tokens, "tokens")),
    Field(name="config", label="A config.json of Hugging Face, pasted", says="It takes the preset's place.", group=OWN,
          kind="area"),
    *(Field(name=name, label=label, says="", group=FIGURES, kind="decimal", read=partial(decimal, name))
      for name, label in CHANGED.items()),
    Field(name="max_memory_gib", label="Most GiB per GPU", says="A cap on predicted memory.", group=ROOM,
          read=partial(decimal, "max_memory_gib"), option="--max-memory"),
    Field(name="headroom_gib", label="Free GiB per GPU", says="Memory that stays free.", group=ROOM,
          read=partial(decimal, "headroom_gib"), option="--headroom"),
    Field(name="fit_chance", label="Chance of fitting", says="At least, 0 to 1; 0.95 unless given.",
          group=ROOM, read=partial(decimal, "fit_chance")),
    Field(name="allow_offload", label="Allow states and activations in host memory", says="", group=ROOM, read=_on,
          kind="flag"),
    Field(name="precision", label="Precision", says="Else the GPU's usual one.", group=MORE,
          among=lambda: names(Precision)),
    Field(name="attention", label="Attention kernel", says="Else the GPU's best.", group=MORE,
          among=lambda: names(Attention)),
    Field(name="framework", label="Framework", says="Else the one that is usual on the cluster.", group=MORE,
          among=lambda: [*dict.fromkeys((*profile_names("frameworks"), *TARGETS))]),
    Field(name="objective", label="Objective", says="Time, throughput and cost give one order.", group=MORE,
          among=lambda: list(OBJECTIVES)),
    Field(name="any_framework", label="Also what the framework lacks", says="", group=MORE, read=_on, kind="flag"),
    Field(name="allow_async", label="Also schedules that change the training", says="", group=MORE, read=_on,
          kind="flag"),
)}  # fmt: skip
"""Fields by name, in the order of the form."""


def form_record() -> dict[str, Any]:
    """The form as the page's script draws it: groups of fields, and the choices of a layout."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for f in FIELDS.values():
        values = [] if f.among is None else f.among()
        shown_as = {"kind": "select" if values else f.kind, "values": values, "default": f.default}
        groups.setdefault(f.group, []).append({"name": f.name, "label": f.label, "says": f.says} | shown_as)
    shared = [_choice(CHOICES[name], "select" if CHOICES[name].enumeration else "text") for name in SHARED]
    settled = [_choice(CHOICES[name], "choice") for name in SETTLED]
    titled = [*groups.items(), ("Numbers of all layouts", shared), ("What may be chosen", settled)]
    return {
        "groups": [{"title": title, "fields": fields} for title, fields in titled],
        "pinned": list(SETTLED),
        "short": {c.short: name for name, c in CHOICES.items() if c.short},
    }


def _choice(choice: Choice, kind: str) -> dict[str, Any]:
    values = ["on", "off"] if choice.kind is bool else list(SCHEDULES) if choice.name == "schedule" else []
    values = names(choice.enumeration) if choice.enumeration else values
    says = f"{choice.says} Default: {choice.derived}." if choice.derived and choice.shared else choice.says
    label = choice.name.replace("_", " ")
    return {"name": choice.name, "label": label, "says": says, "kind": kind, "values": values, "default": ""}
