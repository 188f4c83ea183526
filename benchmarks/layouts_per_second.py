"""How fast the search is: layouts enumerated, estimated and ranked per second, on one core.

python benchmarks/layouts_per_second.py
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import resource
import time

from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.search import default_attention, default_precision, recommend

CASES = [
    ("llama-13b", "dgx-a100-80gb", 64, 2048),
    ("gpt3-175b", "dgx-a100-80gb", 1024, 1536),
    ("megatron-530b", "dgx-a100-80gb", 5120, 2560),
    ("deepseek-v3", "dgx-h100", 2048, 15360),
]


def main() -> None:
    print(f"{'model':16s} {'gpus':>6s} {'layouts':>9s} {'seconds':>8s} {'layouts/s':>10s}")
    for name, cluster_name, gpus, batch in CASES:
        model, cluster = load_model(name), load_cluster(cluster_name)
        framework = load_framework(cluster.framework)
        start = time.perf_counter()
        found = recommend(
            model,
            cluster,
            framework,
            gpus=gpus,
            global_batch=batch,
            precision=default_precision(cluster),
            attention=default_attention(cluster),
        )
        seconds = time.perf_counter() - start
        print(f"{name:16s} {gpus:6d} {found.legal:9,d} {seconds:8.2f} {found.legal / seconds:10,.0f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
