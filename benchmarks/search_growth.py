"""How time and peak memory of a search grow with its space, each size in a process of its own, on one core.

    python benchmarks/search_growth.py

Seconds are the processor's. Memory is the process's peak after the search less that before it. Ten times the layouts
should take at most about ten times the time, and no more memory: the chunk bounds it.
"""

import json
import os
import subprocess
import sys

from planner.setup import Setup

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

SPACES = [
    ("gpt3-175b", "dgx-a100-80gb", 64, 96),
    ("gpt3-175b", "dgx-a100-80gb", 256, 384),
    ("gpt3-175b", "dgx-a100-80gb", 1024, 1536),
    ("gpt3-175b", "dgx-a100-80gb", 7680, 46080),
    ("deepseek-v3", "dgx-h100", 256, 960),
    ("deepseek-v3", "dgx-h100", 2048, 15360),
    ("deepseek-v3", "dgx-h100", 7680, 161280),
]


def one(name: str, cluster_name: str, gpus: int, batch: int) -> dict[str, float]:
    """Layouts, seconds and MiB of one search, in this process."""
    import resource
    from time import process_time

    from planner.hardware import load_cluster, load_framework
    from planner.models import load_model
    from planner.search import Fixed, default_attention, default_precision
    from planner.search.request import Request
    from planner.search.scan import search

    model, cluster = load_model(name), load_cluster(cluster_name)
    framework = load_framework(cluster.framework)
    asked = Request(
        gpus=gpus, global_batch=batch, precision=default_precision(cluster), attention=default_attention(cluster),
        fixed=Fixed(), fine_recompute=framework.fine_recompute, hybrid_sharding=framework.hybrid_sharding,
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = process_time()
    kept = search(Setup(model, cluster, framework), asked)
    seconds = process_time() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"layouts": kept.legal, "seconds": seconds, "mib": (after - before) / 1024}


def main() -> None:
    print("model          gpus     layouts  seconds  layouts/s    MiB  x layouts  x seconds  x MiB")
    last = None
    for space in SPACES:
        out = subprocess.run([sys.executable, __file__, *map(str, space)], capture_output=True, text=True, check=True)
        x = json.loads(out.stdout)
        grown = ""
        if last and last[0] == space[0]:
            grown = "".join(f"{x[k] / last[1][k]:{w}.1f}" for k, w in (("layouts", 11), ("seconds", 11), ("mib", 7)))
        rate = x["layouts"] / x["seconds"]
        print(
            f"{space[0]:12s} {space[2]:6d} {x['layouts']:11,d} {x['seconds']:8.3f} {rate:10,.0f} {x['mib']:6.0f}{grown}"
        )
        last = (space[0], x)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
