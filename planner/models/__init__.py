"""Transformer shapes: presets by name, Hugging Face configs, one's own TOML; parameter and FLOP counts."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, InputError, UnknownNameError, shown
from planner.base.files import is_path, read_toml
from planner.base.lookup import same_name
from planner.models import counts, flops, mix
from planner.models.from_shape import FAMILIES, from_shape, with_seq_len
from planner.models.transformer import Transformer, stack

PRESETS = Path(__file__).with_name("presets.toml")


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return read_toml(PRESETS)


def _presets() -> dict[str, dict[str, Any]]:
    return _tables()["presets"]


def model_names() -> list[str]:
    """Names of the presets; besides these, `x-N` for the X family of Lamy-Poirier 2021."""
    return list(_presets())


def _preset_name(name: str) -> str | None:
    """The preset that a name means however it is spelt, or another release of the same sizes; None if none.

    A name may have its owner on a hub before it, as in `meta-llama/Llama-3.1-8B`; other paths are paths.
    """
    if name.endswith((".toml", ".json")) or name[:1] in "./~" or name.count("/") > 1 or "\\" in name:
        return None
    also: dict[str, str] = _tables()["same_sizes"]
    found = same_name(name, [*_presets(), *also])
    return None if found is None else also.get(found, found)


def x_family(alpha: int) -> Transformer:
    """X_alpha of Lamy-Poirier 2021 (arXiv 2106.02679): width alpha^2, alpha / 2 heads of 2 alpha.

    alpha layers, sequence 16 alpha.
    12 alpha^5 parameters in the layers' products; vocabulary 51,200, which the paper leaves out.

    Raises InputError if alpha is not an even number from 2 to 10,000.
    """
    if alpha % 2 or not 2 <= alpha <= 10_000:
        raise InputError(f"model x-{alpha}: alpha is {alpha}; allowed: an even number from 2 to 10000")
    return from_shape(
        family="gpt", name=f"x-{alpha}", layers=alpha, hidden=alpha**2, ffn=4 * alpha**2, heads=alpha // 2,
        kv_heads=alpha // 2, vocab=51200, seq_len=16 * alpha,
    )  # fmt: skip


def _holds(asked: Callable[[], bool]) -> bool:
    """What is asked of a path; of a text that can't be one it is false."""
    try:
        return asked()
    except (OSError, ValueError):
        return False


def _of_x_family(name: str) -> bool:
    return name.startswith("x-") and name[2:].isdecimal() and len(name) < 9


def config_file(name: str) -> Path | None:
    """The Hugging Face config.json that a model's name means; None where it means a preset or a TOML file.

    Raises FileFormatError if the name is no usable path.
    """
    path = Path(name)
    if name in _presets() or _of_x_family(name):
        return None
    if _holds((path / "config.json").is_file):
        return path / "config.json"
    if _preset_name(name) or not is_path(name, (".toml", ".json")):
        return None
    try:
        path = path / "config.json" if path.is_dir() else path
    except (OSError, ValueError):
        raise FileFormatError(f"{name!r}: not a usable path") from None
    return path if path.suffix == ".json" else None


def load_model(name: str, seq_len: int | None = None) -> Transformer:
    """A model by preset name (however spelt), `x-N`, a Hugging Face config.json or its folder, or a TOML file.

    seq_len: tokens per sequence, for a config.json that states none; what else states them keeps its own.

    Raises:
        UnknownNameError: no preset of that name.
        FileFormatError: a file that can't be read, parsed or validated.
    """
    if name in _presets():
        from planner.models.description import from_description

        return from_description(_presets()[name], PRESETS, name)
    if _of_x_family(name):
        return x_family(int(name[2:]))
    if (config := config_file(name)) is not None:
        from planner.models.huggingface import from_config

        return from_config(config, seq_len)
    if preset := _preset_name(name):
        return load_model(preset)
    if not is_path(name, (".toml", ".json")):
        if name and _holds(Path(name).is_dir):
            raise FileFormatError(f"{shown(name)}: a folder without config.json; allowed: a model's folder")
        remedy = "All: planner models. Or give a config.json or a TOML file (see planner models --help)."
        raise UnknownNameError("model", name, [*model_names(), "x-160"], remedy)
    path = Path(name)
    from planner.models.description import from_description

    tables = read_toml(path)
    if set(tables) != {"model"}:
        raise FileFormatError(f"{path}: has tables {sorted(tables)}; allowed: one table, [model]")
    return from_description(tables["model"], path, path.stem)
