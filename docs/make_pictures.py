"""Draw the pictures of these pages with planner itself: `python docs/make_pictures.py` writes docs/pictures/*.svg.

With names, such as `1f1b search`, only these.

Timelines are what `planner schedule --svg` and `planner simulate --svg` draw; charts are of what a search returns,
or what the commands of a page draw.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from typer.testing import CliRunner

from planner import estimate, recommend, simulate
from planner.cli import app

HERE = Path(__file__).parent
BLUE, ORANGE, GREY, GREEN = "#3182bd", "#e6550d", "#969696", "#31a354"

# Name of the picture: what `planner schedule` is asked.
SCHEDULES = {
    "gpipe": "gpipe --pp 4 --micro-batches 8",
    "1f1b": "1f1b --pp 4 --micro-batches 8",
    "interleaved": "interleaved --pp 4 --micro-batches 8 --virtual-stages 2",
    "seq1f1b": "seq1f1b --pp 4 --micro-batches 4 --slices 2",
    "zb-h1": "zb-h1 --pp 4 --micro-batches 8",
    "zb-v": "zb-v --pp 4 --micro-batches 8",
    "layered": "layered --pp 1 --micro-batches 4 --virtual-stages 4",
    "modular": "modular --pp 4 --micro-batches 8 --virtual-stages 2",
}
PARTS = {
    "work": ("matmul", "attention", "pointwise", "recompute", "embedding_head", "optimizer"),
    "exposed communication": (
        "tensor_comm", "context_comm", "expert_comm", "sharding_comm", "pipeline_comm", "host_comm", "data_comm",
    ),
    "waiting": ("bubble", "imbalance", "host"),
}  # fmt: skip


def planner(*words: str) -> str:
    """What a command prints."""
    said = CliRunner().invoke(app, words, prog_name="planner", catch_exceptions=False)
    if said.exit_code:
        raise SystemExit(f"planner {' '.join(words)}: {said.output}")
    return said.stdout


def save(figure: Figure, path: Path) -> None:
    """The same picture for the same numbers: no date, no random names."""
    figure.savefig(path, metadata={"Date": None})


def axes_of(width: float = 8.0, height: float = 4.0) -> tuple[Figure, Any]:
    """A figure and its axes, without the frame's upper right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_step(folder: Path) -> None:
    """A real step: the first stage carries the embedding, the last the head, the update follows."""
    step = simulate(
        "llama3-8b", "dgx-a100-80gb", batch=16, dp=1, tp=2, pp=4, recompute="full", sequence_parallel=True
    )  # fmt: skip
    step.save(folder / "step.svg")


def draw_search(folder: Path) -> None:
    """Every layout of a search, time against memory, and the front."""
    plan = recommend("llama-65b", "dgx-a100-80gb", gpus=128, batch=512)
    table = plan.to_pandas(everything=True)
    capacity = 80.0
    table = table[(table.step_time_s < 12 * plan.best.step_time_s) & (table.memory_gib < 4 * capacity)]
    shown = table.sample(min(len(table), 4000), random_state=0)
    figure, axes = axes_of()
    for name, rows, colour in (
        ("does not fit", shown[~shown.fits], GREY),
        ("fits", shown[shown.fits], BLUE),
    ):
        axes.plot(rows.memory_gib, rows.step_time_s, ".", color=colour, alpha=0.35, markersize=4, rasterized=True)
        axes.plot([], [], ".", color=colour, label=name)
    front = sorted((x.memory_gib, x.step_time_s) for x in plan.front if x.step_time_s < 12 * plan.best.step_time_s)
    axes.step(*zip(*front, strict=True), where="post", color=ORANGE, label="fastest for each amount of memory")
    axes.plot(plan.best.memory_gib, plan.best.step_time_s, "*", color=ORANGE, markersize=14, label="run this")
    axes.axvline(capacity, color="black", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_yticks([20, 30, 50, 100, 200], [str(y) for y in (20, 30, 50, 100, 200)])
    axes.set_yticks([], minor=True)
    axes.text(capacity, axes.get_ylim()[0], " memory of a GPU", va="bottom", fontsize=9)
    axes.set_xlabel("GiB of the fullest GPU")
    axes.set_ylabel("seconds per step")
    axes.set_title(
        f"{plan.searched:,} layouts of llama-65b on 128 A100, batch 512 ({len(shown):,} drawn)", loc="left", fontsize=10
    )
    axes.legend(framealpha=1.0, edgecolor="none", fontsize=9, loc="upper right")
    save(figure, folder / "search.svg")


def draw_parts(folder: Path) -> None:
    """Where the time of a step goes as tensor parallelism takes over from the pipeline."""
    figure, axes = axes_of(8.0, 3.2)
    layouts = [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)]
    shown = [
        estimate(
            "gpt3-175b", "dgx-a100-80gb", batch=256, dp=4, tp=tp, pp=pp, recompute="full", sequence_parallel=tp > 1
        )
        for tp, pp in layouts
    ]
    left = np.zeros(len(shown))
    for (name, parts), colour in zip(PARTS.items(), (BLUE, ORANGE, GREY), strict=True):
        seconds = np.array([sum(x.time_parts_s[p] for p in parts) for x in shown])
        axes.barh([f"tp {tp}, pp {pp}" for tp, pp in layouts], seconds, left=left, color=colour, label=name)
        left += seconds
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")
    axes.set_title("gpt3-175b on 128 A100, dp 4, batch 256, full recomputation", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    save(figure, folder / "parts.svg")


def draw_shortest(folder: Path) -> None:
    """The shortest training time against GPUs, over two networks."""
    figure, axes = axes_of()
    networks = {"infiniband-hdr": BLUE, "ethernet-25g": ORANGE}
    words = [w for name in networks for w in ("--network", name)]
    said = planner("fastest", "gpt3-175b", "--cluster", "dgx-a100-80gb", "--max-gpus", "100000", *words, "--json")
    for result, (name, colour) in zip(json.loads(said)["results"], networks.items(), strict=True):
        points = [(p["gpus"], p["days"]) for p in result["time_against_gpus"]]
        axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("days")
    tokens = json.loads(said)["results"][0]["goal"]["tokens_at_small_batch"]
    axes.set_title(f"gpt3-175b on {tokens / 1e12:.1f}T tokens, DGX A100: the shortest time", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    save(figure, folder / "shortest.svg")


def draw_of_sweep(folder: Path, name: str, picture: str) -> None:
    """What the commands of sweep.md draw of one of its sweeps."""
    page = (HERE / "sweep.md").read_text(encoding="utf-8")
    block = re.search(rf"^cat > {name}.toml <<'END'\n(.*?)^END\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block is not None, name
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / f"{name}.toml").write_text(block[1])
        for line in block[2].splitlines():
            words = [f"{there}/{w}" if w.endswith((".toml", ".parquet")) else w for w in line.split()[1:]]
            planner(*(str(folder / picture) if w.endswith(".svg") else w for w in words))


CHARTS = {
    "step": draw_step,
    "search": draw_search,
    "parts": draw_parts,
    "shortest": draw_shortest,
    "sweep-heatmap": lambda folder: draw_of_sweep(folder, "sweep", "sweep-heatmap.svg"),
    "sweep-front": lambda folder: draw_of_sweep(folder, "designs", "sweep-front.svg"),
}


def main(folder: Path, names: list[str]) -> None:
    """The pictures of these names, or all."""
    folder.mkdir(exist_ok=True)
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "planner"})
    for name in names or [*SCHEDULES, *CHARTS]:
        if name in CHARTS:
            CHARTS[name](folder)
        else:
            planner("schedule", *SCHEDULES[name].split(), "--svg", str(folder / f"{name}.svg"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SCHEDULES, *CHARTS], default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=HERE / "pictures")
    given = parser.parse_args()
    main(given.folder, given.names)
