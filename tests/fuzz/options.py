"""Every option of every command with numbers and texts that nobody means, read off the command line itself."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache

import typer

from planner.cli import app

__all__ = ["SOUND", "VALUES", "option_cases", "several_options"]

LAYOUT = "gpt2 --cluster dgx-a100-80gb --global-batch 16"
SMALL = "gpt2 --cluster dgx-a100-80gb --gpus 4 --tp 1 --pp 1"
SOUND = {
    "recommend": f"{SMALL} --global-batch 16",
    "estimate": LAYOUT,
    "schedule": "1f1b",
    "simulate": LAYOUT,
    "compare": LAYOUT,
    "partition": LAYOUT,
    "time": f"{SMALL} --tokens 1e9 --batch 16",
    "fewest": "gpt2 --cluster dgx-a100-80gb --max-gpus 4 --tokens 1e9 --tp 1 --pp 1 --batch-tokens 16384",
    "fastest": "gpt2 --cluster dgx-a100-80gb --max-gpus 4 --tokens 1e9",
    "largest": "--cluster dgx-h100 --gpus 8 --months 1",
    "sweep": "@sweep.toml --workers 1 --output @none/out.parquet",
    "doctor": "",
    "mcp": "",
    "serve": "--host 0.0.0.0",  # which is refused
    "pareto": "@results.parquet",
    "heatmap": "@results.parquet --x accelerator.memory_gib --y cluster --where model=gpt2 --json",
    "export": "@plan.json --to megatron",
    "paper": "seq1f1b",
    "explain": f"{SMALL} --global-batch 16",
    "network": "gpt2 --cluster dgx-a100-80gb --gpus 16 --tp 1 --pp 1 --global-batch 16",
    "validate": "@runs.csv",
    "sites": f"{SMALL.replace('--gpus 4 ', '')} --sites 2x2 --gbit 1 --global-batch 16 --tokens 1e9",
    "towers": f"{SMALL} --global-batch 16 --tower gpt2=1",
    "mixed": "gpt2 @mixed.toml --global-batch 8",
    "place": "@place.json --bandwidth @gbit.csv",
    "check": "@launch.sh --cluster selene --gpus 16",
    "observe": "@run.log",
    "laws": "gpt2",
    "models": "gpt2",
    "clusters": "selene",
    "train": "--scale tiny --steps 1",
    "probe": "--write @none/probe.py",
    "calibrate": "--probe @probe.json --cluster dgx-h100",
}
"""A sound and quick call of each command; an option that is given once more counts instead, or as well."""
LASTING = ("serve", "train", "calibrate", "doctor", "mcp", "sweep")
"""Commands that start processes, wait for questions, or may last with two options that are sound alone."""
# Absolute paths are such that nobody can write, root neither: a case may name the file that an option writes.
VALUES = (
    "0", "-1", "1", "3", "1000000000", "2147483648", "9223372036854775808", "1" + "0" * 40, "0.5", "-0.0", "1e-320",
    "1e15", "1e308", "1e-308", "1e400", "-1e400", "nan", "inf", "-inf", "", " ", "0x10", "1_0", "\u0663",
    "--", "9" * 5000,
    "\t", "-", "none", "\u05e2\u05d1", "\u202e", "\x1b[31m", "[/x]", "%s", "../..", "/proc", "/dev/null", ".",
    "/proc/version", "a.toml", "a.csv", "a" * 5000, "a" * 5000 + ".toml", "nul\u0000byte",
    "@", ",", ":", "x-99999999", "3d:", "bf16", "muon", "adam-8bit", "E|t*12L", "E(t|)*99999L", "E" * 5000 + "*99999",
    "hybridep", "lora:16", "lora:8:qkv+fc2", "lora:4096", "lora:16:", "lora:" + "9" * 4000,
    "\uff11\uff12", "16", "2,4", "2x2", "tp=2",
)  # fmt: skip


def option_cases() -> list[tuple[str, ...]]:
    """Every command with every option once with each value, every flag once: the arguments of each case.

    A command without any is drawn with each value as a word that it doesn't take.
    """
    root = typer.main.get_command(app)
    cases: list[tuple[str, ...]] = []
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        sound = SOUND.get(name, "").split()
        if all(parameter.name == "help" for parameter in command.params):
            cases += [(name, value) for value in VALUES if value != "--"]
        for parameter in command.params:
            option = parameter.opts[0]
            if parameter.name == "help":
                continue
            if getattr(parameter, "is_flag", False):
                cases.append((name, *sound, option))
            elif option.startswith("-"):
                cases += [(name, *sound, option, value) for value in VALUES]
            elif name != "calibrate":
                cases += [(name, value, *sound[1:]) for value in VALUES]
    return cases


@cache
def _more() -> dict[str, list[tuple[str, ...]]]:
    """By command, what the cases of its options have behind its sound call."""
    found = defaultdict(list)
    for name, *words in option_cases():
        sound = SOUND.get(name, "").split()
        if name not in LASTING and words[: len(sound)] == sound and words[len(sound) :]:
            found[name].append(tuple(words[len(sound) :]))
    return found


def several_options(seed: int) -> tuple[str, ...]:
    """A command with two to four options at once: what each allows alone may not go together. The same for a seed."""
    chance = random.Random(seed)
    name = chance.choice(sorted(_more()))
    options = chance.sample(_more()[name], min(chance.randint(2, 4), len(_more()[name])))
    return (name, *SOUND.get(name, "").split(), *(word for option in options for word in option))
