"""Megatron-LM with Transformer Engine on one GPU, predicted before it ran: dense models and mixtures of experts.

    python benchmarks/one_gpu_megatron.py draw cases.json --cluster dgx-h200    # where planner is: cases, predictions
    python benchmarks/one_gpu_megatron.py run cases.json measured.json --megatron MEGATRON-LM   # where the GPU is
    python benchmarks/one_gpu_megatron.py table cases.json measured.json        # predicted beside measured

`draw` takes a seed from the system, draws models that one GPU holds and batches, writes each as Megatron-LM's arguments
and asks `planner estimate --megatron-args` of them: nothing of it has run. `run` trains each with Megatron-LM 0.16.1's
own `pretrain_gpt.py` on made-up data with experts evenly loaded, and keeps every iteration's time and the memory that
PyTorch reserved. `--traces FOLDER` runs the cases of `--only` with PyTorch's profiler and a memory snapshot instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LEAST_S, MOST_S, RATE = 0.1, 1.5, 4e14
"""Steps that are drawn last so long by a rough rate in FLOP/s, which no prediction sees."""
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()"]
WARM_UP, ITERATIONS = 4, 14


def drawn(seed: int, count: int) -> dict[str, dict[str, Any]]:
    """So many cases by name, two of three mixtures."""
    chance = random.Random(seed)
    return {f"{i + 1:02d}": _case(chance, mixture=i % 3 != 2) for i in range(count)}


def _case(chance: random.Random, mixture: bool) -> dict[str, Any]:
    while True:
        hidden, layers = chance.choice([1024, 2048, 3072, 4096]), chance.choice([2, 4, 6, 8, 12, 16, 24])
        vocab, seq = chance.choice([32000, 50304, 128256, 151936]), chance.choice([2048, 4096, 8192])
        heads, grouped = hidden // 128, chance.choice([1, 4])
        ffn = 256 * round(chance.choice([8 / 3, 3.5, 4]) * hidden / 256)
        micro_batch, micro_batches = chance.choice([1, 2, 4]), chance.choice([2, 4, 8])
        arguments = [
            "--num-layers", layers, "--hidden-size", hidden, "--num-attention-heads", heads, "--seq-length", seq,
            "--max-position-embeddings", seq, "--micro-batch-size", micro_batch,
            "--global-batch-size", micro_batch * micro_batches, "--ffn-hidden-size", ffn,
            "--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear",
            "--untie-embeddings-and-output-weights", "--vocab-size", vocab, "--attention-dropout", 0.0,
            "--hidden-dropout", 0.0, "--bf16", "--use-distributed-optimizer", "--cross-entropy-loss-fusion",
        ]  # fmt: skip
        if grouped > 1:
            arguments += ["--group-query-attention", "--num-query-groups", heads // grouped]
        held = busy = ffn * hidden * 3
        if mixture:
            experts, top, width = chance.choice([8, 16, 32, 64, 128]), chance.choice([1, 2, 4, 8]), 0
            width = chance.choice([512, 768, 1408, 2048, 4096])
            arguments += [
                "--num-experts", experts, "--moe-router-topk", top, "--moe-ffn-hidden-size", width,
                "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-token-dispatcher-type", "alltoall",
                "--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", 0.01,
                "--moe-router-force-load-balancing",
            ]  # fmt: skip
            arguments += ["--moe-router-pre-softmax"] if top == 1 else []  # Megatron-LM asks for it
            if shared := chance.choice([0, 0, width]):
                arguments += ["--moe-shared-expert-intermediate-size", shared]
            held, busy = (experts * width + shared) * hidden * 3, (top * width + shared) * hidden * 3
        recompute = chance.choice(["none", "none", "full"])
        if recompute == "full":
            arguments += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
            arguments += ["--recompute-num-layers", 1]
        attention = hidden * hidden * (2 + 2 / grouped)
        parameters = 2 * vocab * hidden + layers * (attention + held)
        flop = 6.0 * (2 * vocab * hidden + layers * (attention + busy)) * micro_batch * micro_batches * seq
        flop *= 4 / 3 if recompute == "full" else 1.0
        kept = 40.0 * layers * micro_batch * seq * hidden * (1 if recompute == "none" else 0.1)
        logits = 14.0 * micro_batch * seq * vocab
        if LEAST_S <= flop / RATE <= MOST_S and 18 * parameters + kept + logits < 100e9:
            return {"arguments": [str(one) for one in arguments], "vocab": vocab, "parameters": parameters}


def predicted(case: dict[str, Any], cluster: str, framework: str) -> dict[str, Any]:
    """What `planner estimate` says of a case: seconds, their interval and parts, bytes without context and NCCL."""
    given = ["--cluster", cluster, "--framework", framework, "--gpus", "1", "--vocab", str(case["vocab"])]
    arguments = " ".join(case["arguments"])
    done = subprocess.run(
        [*PLANNER, "estimate", "--megatron-args", arguments, *given, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{arguments}\n{done.stderr}")
    record = json.loads(done.stdout)
    record = record.get("this_run", record)
    parts = record["memory_parts_gib"]
    kept = {name: record[name] for name in ("step_time_s", "step_time_interval_s", "time_s", "memory_parts_gib", "mfu")}
    return kept | {"bytes": 2.0**30 * (sum(parts.values()) - parts["reserved"])}


def run(cases: Path, result: Path, megatron: Path, only: list[str], traces: Path | None, limit_s: float) -> None:
    """Every case in turn, in a process of its own; a failure is kept by its last lines. Written after each."""
    work = json.loads(cases.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"cases": {}}
    for name, case in work["cases"].items():
        if only and name not in only:
            continue
        more = ["--tokenizer-type", "NullTokenizer", "--mock-data", "--train-iters", str(ITERATIONS), "--lr", "1e-4"]
        more += ["--log-interval", "1", "--eval-iters", "0", "--eval-interval", "1000", "--log-throughput"]
        more += ["--no-create-attention-mask-in-dataloader", "--num-workers", "1"]
        if traces is not None:
            more += ["--profile", "--use-pytorch-profiler", "--profile-step-start", "8", "--profile-step-end", "9"]
            more += ["--tensorboard-dir", str(traces / name)]
            more += ["--record-memory-history", "--memory-snapshot-path", str(traces / f"{name}.pickle")]
        start = time.perf_counter()
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29517"}
        try:
            done = subprocess.run(
                [sys.executable, "pretrain_gpt.py", *case["arguments"], *more], cwd=megatron, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
                env=os.environ | alone | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            )  # fmt: skip
            log = done.stdout
        except subprocess.TimeoutExpired as late:
            log = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
            log += f"\nstopped after {limit_s:.0f} s"
        one = read(log)
        found["cases"][name] = one
        said = f"{statistics.median(one['seconds']) * 1e3:.1f} ms" if one.get("seconds") else one["failed"][-300:]
        print(f"{name} {said} ({time.perf_counter() - start:.0f} s)", flush=True)
        result.write_text(json.dumps(found), encoding="utf-8")


def read(log: str) -> dict[str, Any]:
    """Seconds of each iteration after the warm-up, and the bytes that PyTorch allocated and reserved at the peak."""
    seconds = [float(one) / 1e3 for one in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", log)]
    if len(seconds) <= WARM_UP + 2:
        return {"failed": log[-3000:]}
    peaks = {
        kind: max(map(float, re.findall(rf"max {kind}: ([\d.]+)", log)), default=0.0) * 2.0**20
        for kind in ("allocated", "reserved")
    }
    return {"seconds": seconds[WARM_UP:], "peak_bytes": peaks["allocated"], "reserved_bytes": peaks["reserved"]}


def table(work: dict[str, Any], found: dict[str, Any], cluster: str | None, framework: str) -> str:
    """Predicted beside measured, as Markdown."""
    lines = [
        f"{len(found['cases'])} cases, seed {work['seed']}.", "",
        "| | model | batch | ms | predicted | error | GiB | error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    times: dict[str, list[float]] = {"dense": [], "mixtures": []}
    bytes_off, held = [], []
    for name, one in found["cases"].items():
        case = work["cases"][name]
        says = work["predicted"][name] if cluster is None else predicted(case, cluster, framework)
        words = case["arguments"]
        given = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}
        mixture = "--num-experts" in given
        model = f"{given['--num-layers']} x {given['--hidden-size']}, "
        model += (
            f"{given['--num-experts']} experts of {given['--moe-ffn-hidden-size']}, top {given['--moe-router-topk']}"
            if mixture else f"ffn {given['--ffn-hidden-size']}"
        )  # fmt: skip
        model += ", recomputed" if "--recompute-granularity" in given else ""
        each = int(given["--micro-batch-size"])
        batch = f"{int(given['--global-batch-size']) // each} x {each} x {given['--seq-length']}"
        if "failed" in one:
            lines.append(f"| {name} | {model} | {batch} | failed | {says['step_time_s'] * 1e3:.1f} | | | |")
            continue
        took = statistics.median(one["seconds"])
        low, high = says["step_time_interval_s"]
        off = says["step_time_s"] / took - 1.0
        times["mixtures" if mixture else "dense"].append(off)
        bytes_off.append(says["bytes"] / one["peak_bytes"] - 1.0)
        held.append(low <= took <= high)
        lines.append(
            f"| {name} | {model} | {batch} | {took * 1e3:.1f} | {says['step_time_s'] * 1e3:.1f} | {off:+.1%} "
            f"| {one['peak_bytes'] / 2**30:.2f} | {bytes_off[-1]:+.1%} |"
        )
    for what, errors in (*times.items(), ("memory", bytes_off)):
        if errors:
            sizes = sorted(map(abs, errors))
            lines.append(
                f"\n{what}: {len(errors)} cases, mean error {statistics.mean(sizes):.1%}, "
                f"median {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}, "
                f"mean with sign {statistics.mean(errors):+.1%}."
            )
    lines.append(f"\n{sum(held)} of {len(held)} in the 80 % interval.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "run", "table"])
    parser.add_argument("cases", type=Path)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--cluster", help="a cluster or its file; of `table`: ask anew")
    parser.add_argument("--framework", default="megatron-core")
    parser.add_argument("--seed", type=int, help="default: from the system")
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM")
    parser.add_argument("--only", help="names of cases, as 01,04")
    parser.add_argument("--traces", type=Path, help="a folder for traces and memory snapshots; times don't count then")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which a case is stopped")
    given = parser.parse_args()
    if given.what == "draw":
        seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
        cases = drawn(seed, given.count)
        says = {name: predicted(case, given.cluster or "dgx-h200", given.framework) for name, case in cases.items()}
        given.cases.write_text(
            json.dumps({"seed": seed, "cases": cases, "predicted": says}, indent=1), encoding="utf-8"
        )
    elif given.what == "run":
        only = given.only.split(",") if given.only else []
        run(given.cases, given.result, given.megatron, only, given.traces, given.limit)
    else:
        work, found = (json.loads(path.read_text(encoding="utf-8")) for path in (given.cases, given.result))
        print(table(work, found, given.cluster, given.framework))


if __name__ == "__main__":
    main()
