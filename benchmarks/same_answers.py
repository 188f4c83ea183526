"""Whether a change kept the answers: thirty questions as JSON before it, and again after it, number by number.

    python benchmarks/same_answers.py record before/
    python benchmarks/same_answers.py compare before/

The questions were drawn once, with a seed, before issue 8 was begun. A figure may differ by `--tolerance`, relatively;
by default not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SEED = 20261124
ROOT = Path(__file__).parent.parent
MODELS = (
    "gpt3-13b", "gpt3-175b", "megatron-145b", "bloom-176b", "llama-13b", "llama2-70b", "llama3-8b", "llama3-70b",
    "llama3-405b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3",
)  # fmt: skip
CLUSTERS = ("dgx-a100-80gb", "dgx-a100-40gb", "selene", "dgx-h100", "aws-p5", "dgx-b200", "gb200-nvl72")
FRAMEWORKS = (None, None, "megatron-lm", "fsdp", "nemo")


def questions() -> dict[str, list[str]]:
    """Command lines by name; `{out}` stands for a folder of the question's own."""
    draw = random.Random(SEED)
    out: dict[str, list[str]] = {}

    def where() -> list[str]:
        framework = draw.choice(FRAMEWORKS)
        said = ["--framework", framework] if framework else []
        return [draw.choice(MODELS), "--cluster", draw.choice(CLUSTERS), *said]

    for i in range(9):
        gpus = draw.choice((8, 16, 64, 128, 512))
        extra = draw.choice((
            [], ["--objective", "cost"], ["--objective", "memory"], ["--tp", "8", "--allow-offload"],
            ["--recompute", "full", "--zero", "1", "--zero", "3"], ["--schedule", "1f1b", "--schedule", "interleaved"],
            ["--allow-async"], ["--why", "tp=8,pp=2", "--why", "recompute=full"], ["--dp-replicate", "2"],
        ))  # fmt: skip
        size = ["--gpus", str(gpus), "--global-batch", str(gpus * draw.choice((2, 4, 8)))]
        out[f"recommend-{i}"] = ["recommend", *where(), *size, *extra, "--json"]
    for command, times in (("estimate", 7), ("simulate", 3)):
        for i in range(times):
            pp, v = draw.choice(((1, 1), (2, 1), (2, 2), (4, 1), (4, 2)))
            tp = draw.choice((1, 2, 4, 8))
            layout = ["--dp", "4", "--tp", str(tp), "--pp", str(pp), "--virtual-stages", str(v), "--global-batch", "64"]
            more = draw.choice(([], ["--recompute", "full"], ["--zero", "1"], ["--micro-batch", "2"]))
            out[f"{command}-{i}"] = [
                command, draw.choice(("gpt3-13b", "gpt3-175b", "llama3-8b", "llama3-70b", "mixtral-8x7b")),
                "--cluster", draw.choice(CLUSTERS), *layout, *more, "--json",
            ]  # fmt: skip
    for i in range(2):
        place = where()
        out[f"fastest-{i}"] = ["fastest", *place, "--max-gpus", str(draw.choice((512, 4096))), "--json"]
    for i in range(2):
        gpus = draw.choice((128, 512))
        out[f"time-{i}"] = ["time", *where(), "--gpus", str(gpus), "--tokens", "300e9", "--json"]
        out[f"explain-{i}"] = [
            "explain", *where(), "--gpus", str(gpus), "--global-batch", str(2 * gpus), "--json",
        ]  # fmt: skip
    out["validate-shipped"] = ["validate", "--json"]
    unseen = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "measured_runs" / "unseen").glob("*.csv"))
    out["validate-unseen"] = ["validate", *unseen, "--json"]
    for target, file in (("megatron", "launch.sh"), ("deepspeed", "ds.json"), ("torchtitan", "run.toml")):
        out[f"export-{target}"] = [
            "recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "64", "--global-batch", "256",
            "--framework", target, "--export", f"{target}={{out}}/{file}", "--json",
        ]  # fmt: skip
    return out


def answer(arguments: list[str]) -> dict[str, Any]:
    """Exit code, JSON or text on stdout, stderr, and the files that were written."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "planner", *(a.replace("{out}", folder) for a in arguments)]
        ran = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        files = {path.name: path.read_text() for path in sorted(Path(folder).iterdir())}
    try:
        said: Any = json.loads(ran.stdout)
    except ValueError:
        said = ran.stdout
    return {"code": ran.returncode, "said": said, "errors": ran.stderr.replace(folder, "{out}"), "files": files}


def differences(before: Any, after: Any, tolerance: float, where: str = "") -> list[str]:
    """Each place where two records differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = list(dict.fromkeys((*before, *after)))
        lacking = [f"{where}.{k}: only {'before' if k in before else 'after'}" for k in keys
                   if (k in before) != (k in after)]  # fmt: skip
        both = [k for k in keys if k in before and k in after]
        return lacking + [d for k in both for d in differences(before[k], after[k], tolerance, f"{where}.{k}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, tolerance, f"{where}[{i}]")]
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (before, after))
    if before == after or (numbers and abs(before - after) <= tolerance * max(abs(before), abs(after))):
        return []
    return [f"{where}: {str(before)[:90]} -> {str(after)[:90]}"]


def main() -> int:
    """Record the answers, or compare today's with recorded ones; 1 where they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0, help="Relative difference of numbers that passes.")
    parser.add_argument("--only", default="", help="Questions whose name begins so.")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name, arguments in questions().items():
        if not name.startswith(asked.only):
            continue
        file = asked.folder / f"{name}.json"
        now = answer(arguments)
        if asked.what == "record":
            file.write_text(json.dumps(now, indent=1))
            print(f"{name}: exit code {now['code']}", flush=True)
            continue
        found = differences(json.loads(file.read_text()), json.loads(json.dumps(now)), asked.tolerance)
        worst = max(worst, bool(found))
        print(f"{name}: {len(found) or 'no'} differences", *found[:8], sep="\n    ", flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
