"""What all pictures share: labels from column names, and files that are the same for the same picture."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.files import check_writable, write_bytes
from planner.sweeps.columns import UNITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LABELS = {
    "training_days": "training time",
    "training_cost_usd": "training cost",
    "training_energy_mwh": "training energy",
    "time_s_per_billion_tokens": "time per billion tokens",
    "cost_usd_per_billion_tokens": "cost per billion tokens",
    "energy_kwh_per_billion_tokens": "energy per billion tokens",
    "step_time_s": "step time",
    "power_kw": "power",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_gpu": "tokens per second and GPU",
    "mfu": "MFU",
    "gpus": "GPUs",
}


def label(column: str, unit: str) -> str:
    """A column's name as an axis says it: `accelerator.memory_gib` is "accelerator memory (GiB)"."""
    stem = next((column.removesuffix(ending) for ending in UNITS if column.endswith(ending)), column)
    words = LABELS.get(column) or stem.replace("_", " ").replace(".", " ").replace("gpus", "GPUs")
    return f"{words} ({unit})" if unit and column not in ("tokens_per_s", "tokens_per_s_per_gpu") else words


def said(value: Any) -> str:
    """A cell of a table: four digits of a fraction, whole numbers with their thousands apart."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def drawing_style(style: dict[Any, Any]) -> Iterator[None]:
    """What is drawn inside has its text as it is: a name may hold a dollar sign, or letters that the font lacks."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False} | style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def picture(draw: Callable[[], Figure], kind: str) -> bytes:
    """A figure as an SVG or PNG file: no date, no random names, so that the same picture gives the same file."""
    out = io.BytesIO()
    with drawing_style({"svg.fonttype": "none", "svg.hashsalt": "planner"}):
        draw().savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def write_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure; its kind is the path's suffix, .svg or .png. Raises OutputError if the path can't be written."""
    check_writable(path)
    write_bytes(path, picture(draw, path.suffix.removeprefix(".")))
