"""The pictures of answers: panels of bars or curves side by side, made of the record that `--json` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.arrays import Array
from planner.base.units import DAY, GIB, few_digits
from planner.report.tables import MEMORY, PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.search import Recommendation

BLUE, PURPLE, RED = "#0a5fd0", "#7a5cc4", "#b42318"
SERIES = (BLUE, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6b6b6b", "#000000")
WIDE, ROW = 6.0, 0.24  # inches of a panel, and of a bar
LOG_FROM, DECADES = 10.0, 1000.0  # largest over smallest: from here logarithmic, up to here 1, 2, 5 of each marked
THOUSANDS = 10_000.0  # from here on ticks say k, M
SEEN = 1e-3  # of the longest bar: shorter ones are left out
Panel = Callable[[Any], None]
Record = Mapping[str, Any]
Lengths = Sequence[float | None]


def figure_of(title: str, *panels: Panel, bars: int = 0) -> Figure:
    """Panels side by side under a title, high enough for so many bars."""
    from matplotlib.figure import Figure

    wide = WIDE * max(len(panels), 1.25)
    figure = Figure(figsize=(wide, max(4.4, 1.6 + ROW * bars)), layout="constrained")
    figure.suptitle(fill(title, int(12 * wide)), fontsize=10, x=0.01, ha="left")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axis)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def bars(
    axis: Any, rows: Mapping[str, Lengths], title: str, unit: str, series: Sequence[str] = (), colour: str = BLUE
) -> None:
    """A bar for each row, the first on top, or one for each of its series; a length that is None is left out."""
    many = max(map(len, rows.values()), default=1)
    for k in range(many):
        told = [(place, values[k]) for place, values in enumerate(rows.values()) if values[k] is not None]
        places, lengths = zip(*told, strict=True) if told else ((), ())
        drawn = axis.barh(
            [place + (k - (many - 1) / 2) * 0.8 / many for place in places], lengths, height=0.8 / many,
            color=SERIES[k] if many > 1 else colour, label=series[k] if series else None,
        )  # fmt: skip
        axis.bar_label(drawn, [few_digits(value) for value in lengths], padding=4, fontsize=8)
    axis.set_yticks(range(len(rows)), [fill(name, 34) for name in rows])
    axis.invert_yaxis()
    axis.margins(x=0.16)
    axis.locator_params(axis="x", nbins=6)
    axis.set(title=title, xlabel=unit)
    if series and not axis.figure.legends:
        axis.figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8)


def largest_first(*parts: Mapping[str, float], words: Mapping[str, str] | None = None) -> dict[str, list[float]]:
    """Parts as rows of bars, those that can be seen, of several layouts side by side; words: what they are called."""
    most = {name: max(abs(one.get(name, 0.0)) for one in parts) for one in parts for name in one}
    told = [name for name in most if most[name] > SEEN * max(most.values())]
    told.sort(key=lambda name: -most[name])
    return {(words or {}).get(n, n).replace("_", " "): [one.get(n, 0.0) for one in parts] for n in told}


def parts(*layouts: Record, series: Sequence[str] = ()) -> tuple[Panel, Panel]:
    """Seconds of a layout's step and memory of its fullest rank by part, or of several layouts' beside each other."""
    seconds = largest_first(*(one["time_s"] for one in layouts), words=PARTS)
    gib = largest_first(*(one["memory_parts_gib"] for one in layouts), words=MEMORY)
    return (
        partial(bars, rows=seconds, title="Where the time goes", unit="seconds per step", series=series),
        partial(
            bars, rows=gib, title="Where the memory goes", unit="GiB of the fullest rank", series=series, colour=PURPLE
        ),
    )


def draw_layouts(title: str, *layouts: Record, series: Sequence[str] = ()) -> Figure:
    """`parts`, as a figure."""
    return figure_of(title, *parts(*layouts, series=series), bars=len(layouts) * len(layouts[0]["time_s"]))


def draw_rows(title: str, rows: Mapping[str, Record], *figures: tuple[str, str]) -> Figure:
    """A panel for each figure, its key and what it is, with a bar for each record that has it."""
    panels = [
        partial(bars, rows={name: [row.get(key)] for name, row in rows.items()}, title="", unit=says)
        for key, says in figures
    ]
    return figure_of(title, *panels, bars=len(rows))


def curves(
    axis: Any, lines: Sequence[tuple[str, Sequence[Record]]], keys: tuple[str, str], units: tuple[str, str],
    marked: Sequence[Record] = (),
) -> None:  # fmt: skip
    """A record's figure against another a curve for each list of records; the knees are marked."""
    x, y = keys
    for (name, points), colour in zip(lines, SERIES * len(lines), strict=False):
        ends = [p for p in points if p.get(x) is not None and p.get(y) is not None]
        axis.plot([p[x] for p in ends], [p[y] for p in ends], "o-", color=colour, markersize=4, label=fill(name, 60))
    if marked:
        look: dict[str, Any] = {"color": "none", "markeredgecolor": "black", "markersize": 10, "label": "knee"}
        axis.plot([p[x] for p in marked], [p[y] for p in marked], "D", **look)
    for along, key in ((axis.xaxis, x), (axis.yaxis, y)):
        ruled(along, [p[key] for _, points in lines for p in points if p.get(key) is not None])
    axis.set(xlabel=units[0], ylabel=units[1])
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.3)


def ruled(axis: Any, values: Any) -> None:
    """A logarithmic axis for what spans a decade, with ticks that stay apart; k and M for large numbers."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    low, high = float(min(values, default=1.0)), float(max(values, default=1.0))
    large = EngFormatter(sep=" ") if high >= THOUSANDS else None
    if low > 0 and high / low > LOG_FROM:
        (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < DECADES else (1.0,)))
        axis.set_major_formatter(large or FuncFormatter(lambda v, _: f"{v:,g}"))
        axis.set_minor_formatter(NullFormatter())
    elif large:
        axis.set_major_formatter(large)


def draw_time(title: str, r: Record) -> Figure:
    """The days of a training by part, and its memory."""
    run, layout = r["run"], r["layout"]
    days = {PARTS[name]: seconds * run["steps"] / DAY for name, seconds in layout["time_s"].items()}
    if run["days"] is not None:
        days["failures and checkpoints"] = run["days"] - run["busy_s"] / DAY
        low, high = run["days_interval"] or (run["days"], run["days"])
        title += f": {run['days']:,.3g} days, {low:,.3g} to {high:,.3g} with a chance of 80 %"
    panel = partial(bars, rows=largest_first(days), title="Where the days go", unit="days")
    return figure_of(title, panel, parts(layout)[1])


def draw_explained(title: str, r: Record) -> Figure:
    """The saving from twice as much of each quantity, and where the step's time goes."""
    keys, series = ("twofold", "replanned"), ("the layout as it is", "the best layout then")
    rows = {e["name"]: [None if e[key] is None else 100 * e[key] for key in keys] for e in r["effects"]}
    saves = partial(bars, rows=rows, title="Twice as much (of a latency: half)", unit="% of time saved", series=series)
    return figure_of(title, saves, parts(r["layout"])[0], bars=2 * len(rows))


def draw_fastest(r: Record) -> Figure:
    """Days against GPUs and against money of every search, the knees marked."""
    found = [one for one in r["results"] if "none" not in one]
    priced = all(one["shortest"]["cost_usd"] is not None for one in found)

    def panel(front: str, own: str, knee: str, key: str, says: str) -> Panel:
        lines = [(f"{one['cluster']}, {one['strategy']}", one[front]) for one in found]
        marked = [p for one in found for p in one[front] if p[own] == one[knee]]
        return partial(curves, lines=lines, keys=(key, "days"), units=(says, "days"), marked=marked)

    money = ("cost_usd", "USD") if priced else ("gpu_hours", "GPU-hours")
    by_gpus = panel("time_against_gpus", "gpus", "knee_gpus", "gpus", "GPUs")
    by_cost = panel("time_against_cost", "gpu_hours", "knee_cost_gpu_hours", *money)
    return figure_of(f"{r['model']}: the shortest time to train", by_gpus, by_cost)


def draw_fewest(title: str, r: Record) -> Figure:
    """Days of every number of GPUs that was tried."""
    tried = sorted((row for row in r["tried"] if row["fits"]), key=lambda row: row["gpus"])
    return figure_of(title, partial(curves, lines=[("tried", tried)], keys=("gpus", "days"), units=("GPUs", "days")))


def draw_plan(title: str, found: Recommendation, memory_bytes: float, record: Record) -> Figure:
    """The recommended layout on the front of step time against memory, and its step and memory by part."""
    front = partial(front_panel, found=found, capacity_gib=memory_bytes / GIB, i=int(found.best[0]))
    return figure_of(title, front, *parts(record), bars=len(record["time_s"]))


def front_panel(axis: Any, found: Recommendation, capacity_gib: float, i: int) -> None:
    """Step time against memory: the front, and the layout."""
    x = found.estimate
    rows = found.front[x.step_time_s[found.front] <= 4 * x.step_time_s[i]]
    memory, step = x.memory_bytes[rows] / GIB, x.step_time_s[rows]
    axis.step(memory, step, where="pre", color=BLUE, linewidth=1.2, alpha=0.7)
    axis.plot(memory, step, "o", color=BLUE, markersize=5, label="front")
    axis.plot(x.memory_bytes[i] / GIB, x.step_time_s[i], "D", color=BLUE, markersize=10, label="recommended")
    axis.axvline(capacity_gib, color=RED, linestyle="--", linewidth=1, label="the GPU's memory")
    axis.set_xlim(left=0)
    axis.set(title="Time against memory", xlabel="memory of the fullest rank, GiB", ylabel="seconds per step")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)


def accuracy_panel(axis: Any, errors: Array) -> None:
    """Errors of predicted step times on measured runs."""
    low, high = np.quantile(100 * errors, [0.1, 0.9])
    axis.hist(100 * np.clip(errors, -0.4, 0.4), bins=40, range=(-40, 40), color=BLUE)
    axis.axvspan(low, high, color=BLUE, alpha=0.12, label=f"80 %: {low:+.1f} to {high:+.1f} %")
    axis.set(
        title=f"Errors on {len(errors):,} measured runs",
        xlabel="predicted over measured step time, less 1, %",
        ylabel="runs",
    )
    axis.legend(frameon=False, fontsize=9)
