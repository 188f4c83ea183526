"""Predicted against measured step time of the mini-trainer on this machine, two ranks under mpirun.

First `trainer_passes.py` on both ranks, then one training run a row: model kind and size, micro-batch, and pp = 2 under
several schedules, dp = 2, tp = 2. Steps and microbenchmarks in which another process had a rank's processor don't
count; a run starts when the machine is quiet, and is repeated up to five times until ranks had their processors.
Bars: 10 % median, 20 % worst.

python benchmarks/trainer_prediction.py [prices.toml]               36 fixed runs, on which the prices were developed
python benchmarks/trainer_prediction.py [prices.toml] --draw SEED   30 runs drawn from many more
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from itertools import product
from pathlib import Path

from trainer_step import predicted_step_s

from planner.cli.train_plan import Choices, make_training, read_plan
from planner.trainer.loop import Training

MPIRUN = [str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()"]
PASSES = [sys.executable, str(Path(__file__).with_name("trainer_passes.py"))]
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

LAYOUTS = [
    ["--pp", "2", "--schedule", "1f1b"],
    ["--pp", "2", "--schedule", "gpipe"],
    ["--pp", "2", "--schedule", "interleaved", "--virtual-stages", "2"],
    ["--pp", "2", "--schedule", "zb-h1"],
    ["--pp", "2", "--schedule", "zb-v", "--virtual-stages", "2"],
    ["--pp", "2", "--recompute", "full"],
    ["--dp", "2"],
    ["--dp", "2", "--zero", "1"],
    ["--tp", "2"],
]
MODELS = [("gpt2", "2"), ("gpt2", "4"), ("llama-7b", "2"), ("llama-7b", "4")]
# What runs are drawn from: kinds of model (grouped heads, wide and narrow MLPs, tied and untied), sizes, layouts.
# llama3-8b twice: in the place of mistral-7b, whose scaled shape is the same but for its windows.
DRAWN_MODELS = ["gpt2", "gpt3-1.3b", "mpt-1b", "llama-13b", "llama2-70b", "llama3-8b", "llama3-8b", "qwen2-1.5b"]
DRAWN_LAYOUTS = [
    *LAYOUTS,
    ["--pp", "2", "--schedule", "breadth-first", "--virtual-stages", "2"],
    ["--pp", "2", "--schedule", "zb-h2"],
    ["--pp", "2", "--schedule", "gpipe", "--recompute", "full"],
    ["--pp", "2", "--recompute", "selective"],
    ["--dp", "2", "--recompute", "full"],
    ["--tp", "2", "--recompute", "full"],
]


def drawn(seed: int, count: int = 30) -> list[list[str]]:
    """Arguments of so many runs: layouts in turn, the rest by chance."""
    chance = random.Random(seed)
    layouts = [DRAWN_LAYOUTS[i % len(DRAWN_LAYOUTS)] for i in range(count)]
    return [
        ["--model", chance.choice(DRAWN_MODELS), "--scale", chance.choice(["small", "small", "medium"]),
         "--micro-batch", str(chance.choice([1, 2, 3, 4, 6, 8])),
         "--micro-batches", str(chance.choice([4, 6, 8])), *layout]
        for layout in layouts
    ]  # fmt: skip


def fixed() -> list[list[str]]:
    """Arguments of the runs on which grid, fit and rules were developed."""
    return [
        ["--model", model, "--scale", "small", "--micro-batch", micro_batch, *layout]
        for (model, micro_batch), layout in product(MODELS, LAYOUTS)
    ]


def training(options: list[str]) -> Training:
    """What `planner train` trains with these options."""
    given = dict(zip((name[2:].replace("-", "_") for name in options[::2]), options[1::2], strict=True))
    shape, row = read_plan(None, given.pop("model"))
    each, many = (int(given.pop(name)) if name in given else None for name in ("micro_batch", "micro_batches"))
    how = Choices(scale=given.pop("scale"), steps=24, micro_batches=many)
    words = {name: given.pop(name) for name in ("schedule", "recompute") if name in given}
    return make_training(shape, row | words | {name: int(value) for name, value in given.items()}, how, each)


def run(*command: str) -> str:
    done = subprocess.run([*MPIRUN, *command], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def wait_until_quiet(most_s: float = 30.0) -> None:
    """Until nothing but this process has run for half a second, on Linux; on others at once."""
    load, end, quiet = Path("/proc/loadavg"), time.monotonic() + most_s, 0
    while load.exists() and quiet < 10 and time.monotonic() < end:
        running = int(load.read_text().split()[3].split("/")[0])
        quiet = quiet + 1 if running <= 1 else 0
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prices", nargs="?", type=Path, default=Path(tempfile.mkdtemp()) / "prices.toml")
    parser.add_argument("--draw", type=int, metavar="SEED")
    arguments = parser.parse_args()
    if not arguments.prices.exists():
        run(*PASSES, str(arguments.prices))
    prices = tomllib.loads(arguments.prices.read_text(encoding="utf-8"))["seconds"]
    errors = []
    print(f"{'run':<100} {'measured':>9} {'predicted':>9}  error  of the processor")
    for options in fixed() if arguments.draw is None else drawn(arguments.draw):
        for _ in range(5):
            wait_until_quiet()
            record = json.loads(run(*PLANNER, "train", *options, "--steps", "24", "--json"))
            if record["processor_share"] > 0.9:
                break
        measured, predicted = record["undisturbed_step_time_s"], predicted_step_s(training(options), prices, "mpi")
        errors.append(predicted / measured - 1)
        shown = " ".join(options).replace("--", "")
        times = f"{measured * 1e3:>6.1f} ms {predicted * 1e3:>6.1f} ms"
        print(f"{shown:<100} {times}  {errors[-1]:+.1%}  {record['processor_share']:.0%}", flush=True)
    sizes = sorted(map(abs, errors))
    print(f"{len(sizes)} runs: median {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}; bars 10 % and 20 %")


if __name__ == "__main__":
    main()
