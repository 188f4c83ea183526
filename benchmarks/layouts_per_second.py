"""How fast the search is, on one core: every legal layout enumerated, its time and memory estimated, the best kept.

    python benchmarks/layouts_per_second.py [--runs 5]

The rate is without pruning, so that every layout is estimated in full; the last two columns are the search as
`planner recommend` runs it, and with its finalists simulated. Seconds are those of the processor, the least of several
runs, so that other work on the machine counts little.
"""

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import resource
from time import process_time

from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.search import Fixed, default_attention, default_precision, recommend
from planner.search.request import Request
from planner.search.scan import search
from planner.search.space import space
from planner.setup import Setup

CASES = [
    ("llama-13b", "dgx-a100-80gb", 64, 2048),
    ("gpt3-175b", "dgx-a100-80gb", 1024, 1536),
    ("megatron-530b", "dgx-a100-80gb", 5120, 2560),
    ("deepseek-v3", "dgx-h100", 2048, 15360),
]
RUNS = 5  # of each call, the least of which counts


def least(call, runs):
    """The least seconds of so many runs, and what the last one gave."""
    seconds, result = float("inf"), None
    for _ in range(runs):
        start = process_time()
        result = call()
        seconds = min(seconds, process_time() - start)
    return seconds, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    print("model           gpus   layouts  enumerated s  estimated s  layouts/s  pruned s  recommend s")
    for name, cluster_name, gpus, batch in CASES:
        model, cluster = load_model(name), load_cluster(cluster_name)
        framework = load_framework(cluster.framework)
        numerics = {"precision": default_precision(cluster), "attention": default_attention(cluster)}
        asked = Request(
            gpus=gpus, global_batch=batch, fixed=Fixed(), fine_recompute=framework.fine_recompute,
            hybrid_sharding=framework.hybrid_sharding, **numerics,
        )  # fmt: skip
        listed, _ = least(lambda m=model, c=cluster, a=asked: sum(int(g.legal.sum()) for g in space(m, c, a)), runs)
        whole, kept = least(
            lambda m=model, c=cluster, f=framework, a=asked: search(Setup(m, c, f), a, prune=False), runs
        )
        pruned, _ = least(lambda m=model, c=cluster, f=framework, a=asked: search(Setup(m, c, f), a), runs)
        answer, _ = least(
            lambda m=model, c=cluster, f=framework, g=gpus, b=batch, n=numerics: recommend(
                Setup(m, c, f), gpus=g, global_batch=b, **n
            ),
            runs,
        )
        rate = kept.legal / whole
        print(
            f"{name:13s} {gpus:6d} {kept.legal:9,d} {listed:13.3f} {whole - listed:12.3f} {rate:10,.0f} {pruned:9.3f} "
            f"{answer:12.3f}"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
