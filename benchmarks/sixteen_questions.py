"""Sixteen ordinary questions: what is recommended, whether its framework runs it as exported, and what it gives up.

    python benchmarks/sixteen_questions.py            # a Markdown table, as in docs/advice.md; a few minutes

`given up`: how much faster the fastest layout of all is that is predicted to fit, by any schedule and up to the last
byte. `exported`: what the framework's exporter changes of the layout, nothing where it writes it as it is.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from planner import recommend
from planner.exporters.nearest import Nearest
from planner.exporters.plan_export import get_target
from planner.plan_file import read_plan
from planner.report.tables import chance_text, layout_text

QUESTIONS = (
    ("llama3-8b", "dgx-a100-40gb", 8, 256, "fsdp"),
    ("llama3-8b", "dgx-a100-80gb", 64, 512, None),
    ("llama3-8b", "dgx-h100", 64, 512, None),
    ("llama3-8b", "dgx-b200", 64, 512, None),
    ("llama3-70b", "dgx-a100-80gb", 256, 1024, None),
    ("llama3-70b", "dgx-h100", 256, 1024, None),
    ("llama3-70b", "dgx-h200", 512, 1024, None),
    ("llama3-70b", "gb200-nvl72", 288, 1152, None),
    ("llama3.1-405b", "dgx-h100", 1024, 1024, None),
    ("llama3.1-405b", "dgx-h100", 4096, 2048, None),
    ("llama3.1-405b", "gb200-nvl72", 576, 1152, None),
    ("mixtral-8x7b", "dgx-h100", 64, 512, None),
    ("qwen3-30b-a3b", "dgx-h100", 64, 512, None),
    ("qwen3-235b-a22b", "dgx-h100", 256, 1024, None),
    ("qwen3-235b-a22b", "dgx-b200", 128, 1024, None),
    ("deepseek-v3", "dgx-h100", 1024, 8192, None),
)
TARGETS = {"fsdp": "torchtitan"}
WHOLE = {"fit_chance": 0.5, "any_framework": True}  # all of the memory


def row(model: str, cluster: str, gpus: int, batch: int, framework: str | None) -> list[str]:
    """One question's cells."""
    plan = recommend(model, cluster, gpus=gpus, batch=batch, framework=framework)
    free = recommend(model, cluster, gpus=gpus, batch=batch, framework=framework, **WHOLE)  # type: ignore[arg-type]
    best, fastest = plan.best.to_dict(), free.to_dict()["fastest"]
    given_up = 1.0 - fastest["step_time_s"] / best["step_time_s"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan.to_dict()))
        read = read_plan(path)
    target = get_target(TARGETS.get(framework or "", "megatron"))
    nearest = Nearest(target.title, read.setup, read.row)
    target.adapt(nearest)
    changed = {k: v for k, v in nearest.row.items() if v != read.row[k]}
    return [
        f"{model}, {gpus:,} GPUs of {cluster}, batch {batch:,}", layout_text(best["layout"]),
        f"{best['step_time_s']:.4g}", f"{best['memory_gib']:.1f}", chance_text(best["fit_chance"]),
        f"{given_up:.1%}", f"{layout_text(fastest['layout'])}, {fastest['memory_gib']:.1f} GiB "
        f"({chance_text(fastest['fit_chance'])})", ", ".join(f"{k} {v}" for k, v in changed.items()) or "as it is",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    head = ("question", "run this", "step s", "GiB", "fits", "given up", "fastest of all", "exported")
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|", flush=True)
    for question in QUESTIONS:
        print("| " + " | ".join(row(*question)) + " |", flush=True)


if __name__ == "__main__":
    main()
