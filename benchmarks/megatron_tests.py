"""Milliseconds of a layer and micro-batch in Megatron-LM's own functional tests, whose models no GPU is busy with.

Usage: python benchmarks/megatron_tests.py REPOSITORY [COMMIT]   (a clone of github.com/NVIDIA/Megatron-LM)

Each test names its layout in model_config.yaml and the step times that its machines took in golden_values_*.json: a
median of the later two thirds, over the layers and micro-batches that a pipeline's rank runs, its idle ones included.
Twelve layers of 512 channels take a GPU a fraction of a millisecond, so what is left is the host's: the figures
`host_layer_*`, `host_launch`, `host_context` and `host_fp8` of hardware_profiles/frameworks/megatron-core.toml.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import yaml

FOLDER = "tests/functional_tests/test_cases"


def shown(repository: str, *words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, check=True).stdout


def per_layer_ms(step_s: float, said: dict[str, object], gpus: int = 8) -> float:
    """A layer's milliseconds for one micro-batch, with the pipeline's idle ones counted."""
    names = ("tensor-model", "pipeline-model", "context")
    tp, pp, cp = (int(str(said.get(f"--{name}-parallel-size", 1))) for name in names)
    layers = int(str(said["--num-layers"]))
    micro = int(str(said["--global-batch-size"])) // int(str(said["--micro-batch-size"])) // (gpus // (tp * pp * cp))
    chunk = int(str(said.get("--num-layers-per-virtual-pipeline-stage", layers // pp)))
    return 1e3 * step_s / ((micro + (pp - 1) / (layers // pp / chunk)) * layers / pp)


def main(repository: str, commit: str = "HEAD") -> None:
    """Print a line for each test of twelve layers of 512 channels and each of its machines."""
    for path in shown(repository, "ls-tree", "-r", "--name-only", commit, f"{FOLDER}/gpt", f"{FOLDER}/moe").split():
        folder, name = path.rsplit("/", 1)
        if not name.startswith("golden_values_dev_dgx_") or folder.endswith("_1node"):
            continue
        said = yaml.safe_load(shown(repository, "show", f"{commit}:{folder}/model_config.yaml")).get("MODEL_ARGS", {})
        times = json.loads(shown(repository, "show", f"{commit}:{path}")).get("iteration-time", {}).get("values", {})
        steps = [t for t in times.values() if isinstance(t, float)]
        if said.get("--hidden-size") != 512 or len(steps) < 5:
            continue
        step_s = statistics.median(steps[len(steps) // 3 :])
        machine = name.removeprefix("golden_values_dev_dgx_").removesuffix(".json")
        print(f"{per_layer_ms(step_s, said):6.2f}  {machine:10}  {folder.removeprefix(FOLDER + '/')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
