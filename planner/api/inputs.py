"""The model and the cluster of a question, given by name, by file, or by shape."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from planner import hardware, models
from planner.api.frameworks import setup_under
from planner.base.arguments import checked
from planner.base.errors import InputError
from planner.base.units import GBIT, GIB
from planner.choices.choice import length
from planner.models import Transformer
from planner.report import records
from planner.report.plain_table import html_of
from planner.setup import Setup

Numbers = int | Sequence[int] | None
Names = str | Sequence[str] | None


class SharedChoices(TypedDict, total=False):
    """Choices of which one holds for all layouts of a search; what is not given is usual, as for those below."""

    precision: str | None
    attention: str | None
    fused_norm: bool | None
    cuda_graphs: bool | None
    grad_dtype: str | None
    grad_reduce_dtype: str | None
    main_dtype: str
    optimizer: str
    offload_fraction: float
    offload_modules: str
    dispatcher: str | None
    expert_imbalance: float
    capacity_factor: float
    train: str


class LayoutChoices(SharedChoices, total=False):
    """The choices by name that `estimate` and `simulate` take of a layout (`planner.choices.table` has them all)."""

    dp: int
    tp: int
    pp: int
    cp: int
    ulysses: int
    inner_ring: int
    ep: int
    etp: int | None
    micro_batch: int
    virtual_stages: int
    sequence_slices: int
    schedule: str | None
    zero: int
    dp_replicate: int
    recompute: str
    recompute_layers: int
    layer_split: str | None
    pipeline_layout: str
    sequence_parallel: bool | None
    offload_optimizer: bool
    offload_parameters: bool
    offload_layers: int


class SearchChoices(SharedChoices, total=False):
    """The choices open to a search, with one or several values each; and what may be advised."""

    tp: Numbers
    pp: Numbers
    dp: Numbers
    cp: Numbers
    ulysses: Numbers
    inner_ring: Numbers
    ep: Numbers
    etp: Numbers
    micro_batch: Numbers
    virtual_stages: Numbers
    zero: Numbers
    dp_replicate: Numbers
    recompute: Names
    recompute_layers: Numbers
    offload_parameters: bool | None
    offload_layers: Numbers
    schedule: Names
    layer_split: Names
    sequence_parallel: bool | None
    allow_offload: bool
    allow_async: bool
    any_framework: bool
    exclude: Sequence[str] | None
    fit_chance: float | None
    headroom_gib: float | None
    max_memory_gib: float | None


def _name(kind: str, value: Any) -> str:
    """A name, or a path as text."""
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise InputError(f"{kind} is {value!r}; allowed: a name, or the path of a file")


@dataclass(frozen=True, init=False, repr=False)
class Model:
    """A transformer by name: a preset (`planner models` lists them), a Hugging Face config.json or a TOML file.

    seq_len: tokens per sequence, instead of the model's own: 4096, or "128k".

    Attributes:
        transformer: the shape that the cost models read.
        word: the name or file that was given.

    Raises:
        UnknownNameError: no preset of that name; the message has the nearest.
        FileFormatError: a file that can't be read, parsed or validated.
        InputError: a sequence length out of range.
    """

    transformer: Transformer
    word: str = field(compare=False)

    @checked
    def __init__(self, name: str | os.PathLike[str], *, seq_len: int | str | None = None) -> None:
        word = _name("model", name)
        if isinstance(seq_len, str):
            seq_len = length("seq_len", seq_len)
        shape = models.load_model(word, seq_len)
        vars(self).update(transformer=shape if seq_len is None else models.with_seq_len(shape, seq_len), word=word)

    @staticmethod
    @checked
    def of_shape(
        *,
        family: str,
        layers: int,
        hidden: int,
        ffn: int,
        heads: int,
        vocab: int,
        seq_len: int,
        kv_heads: int | None = None,
        experts: int = 0,
        top_k: int = 0,
        name: str = "own",
    ) -> Model:
        """A model of one's own by sizes; its family (gpt, llama, nemotron, moe, hybrid) says norms, gating, positions.

        Raises:
            InputError: an unknown family, or an impossible shape; names the field.
        """
        sizes = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "vocab": vocab, "seq_len": seq_len}
        for size, value in {**sizes, "kv_heads": heads if kv_heads is None else kv_heads}.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{size} is {value!r}; allowed: a whole number")
        model = object.__new__(Model)
        shape = models.from_shape(
            family=family, kv_heads=heads if kv_heads is None else kv_heads, experts=experts, top_k=top_k, name=name,
            **sizes,
        )  # fmt: skip
        vars(model).update(transformer=shape, word=name)
        return model

    @property
    def name(self) -> str:
        """The preset's or the file's name."""
        return str(self.transformer.name)

    @property
    def parameters(self) -> int:
        """All parameters, embedding and head included."""
        return int(models.counts.total_params(self.transformer))

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: fewer than all in a mixture of experts."""
        return int(models.counts.active_params(self.transformer))

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return int(self.transformer.seq_len)

    def to_dict(self) -> dict[str, Any]:
        """The shape and its parameter counts, as `planner models NAME --json` prints them."""
        return records.model_record(self.transformer)

    def __repr__(self) -> str:
        t = self.transformer
        return (
            f"Model {t.name}: {self.parameters / 1e9:.3g}B parameters, {t.num_layers} layers, hidden {t.hidden}, "
            f"{t.num_heads} heads, vocabulary {t.vocab:,}, {t.seq_len:,} tokens"
        )

    def _repr_html_(self) -> str:
        return html_of(repr(self))


@dataclass(frozen=True, init=False, repr=False)
class Cluster:
    """Accelerators and the links between them: a profile (`planner clusters` lists them) or a TOML file.

    network: another network between the nodes, by name (such as "ethernet-25g") or TOML file.
    figures: in place of the profile's, by dotted name in its units, such as {"accelerator.memory_gib": 141}; of the
    framework that is used on it {"framework.overlap_tensor": 0}.

    Attributes:
        profile: every figure, with its source.
        word: the name or file that was given.

    Raises:
        UnknownNameError: no such cluster or network; the message has the nearest.
        FileFormatError: a file that can't be read, parsed or validated.
        InputError: a figure that is unknown or out of range.
    """

    profile: hardware.Cluster
    word: str = field(compare=False)

    @checked
    def __init__(
        self, name: str | os.PathLike[str], *, network: str | None = None, figures: Mapping[str, float] | None = None
    ) -> None:
        if not isinstance(figures, Mapping | None) or not all(isinstance(key, str) for key in figures or ()):
            raise InputError(
                f"figures is {figures!r}; allowed: numbers by name, such as {{'accelerator.memory_gib': 141}}"
            )
        link = None if network is None else _name("network", network)
        word = _name("cluster", name)
        vars(self).update(profile=hardware.changed_cluster(word, figures or {}, network=link), word=word)

    @property
    def name(self) -> str:
        """The profile's name, with its network where that was replaced."""
        return self.profile.name

    @property
    def gpus_per_node(self) -> int:
        """Accelerators that share the fast link."""
        return self.profile.gpus_per_node

    @property
    def memory_gib(self) -> float:
        """Memory of one accelerator."""
        return self.profile.accelerator.memory_bytes / GIB

    def to_dict(self) -> dict[str, Any]:
        """Every figure with its source, as `planner clusters NAME --json` prints them."""
        from dataclasses import asdict

        return asdict(self.profile)

    def __repr__(self) -> str:
        c = self.profile
        nic = c.network.bandwidth_bytes_per_s / GBIT
        return (
            f"Cluster {c.name}: nodes of {c.gpus_per_node} {c.accelerator.name} ({self.memory_gib:.0f} GiB) over "
            f"{c.node_link.name}, {c.nics_per_node} x {nic:g} Gb/s {c.network.kind} between them"
        )

    def _repr_html_(self) -> str:
        return html_of(repr(self))


ModelLike = Model | str | os.PathLike[str]
ClusterLike = Cluster | str | os.PathLike[str]
"""A model, a cluster, or the name or file that stands for one."""


def shape_of(model: ModelLike) -> Transformer:
    """The model's shape. Raises as `Model`."""
    return (model if isinstance(model, Model) else Model(model)).transformer


def profile_of(cluster: ClusterLike) -> hardware.Cluster:
    """The cluster's figures. Raises as `Cluster`."""
    return (cluster if isinstance(cluster, Cluster) else Cluster(cluster)).profile


def setup_of(model: ModelLike, cluster: ClusterLike, framework: str | None) -> Setup:
    """The question; a name stands for the model or cluster that it names. Raises as `Model` and `Cluster`."""
    profile = None if framework is None else _name("framework", framework)
    return setup_under(shape_of(model), profile_of(cluster), profile)
