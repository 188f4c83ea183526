"""Real PyTorch training on one GPU, predicted before it ran: transformers' models under FSDP2 on a mesh of one rank.

    python benchmarks/one_gpu.py draw cases.json --cluster dgx-h200         # where planner is: cases and predictions
    python benchmarks/one_gpu.py run cases.json measured.json               # where the GPU is: torch, transformers
    python benchmarks/one_gpu.py table cases.json measured.json             # predicted beside measured
    python benchmarks/one_gpu.py table cases.json measured.json --cluster mine/clusters/dgx-h200.toml   # asked anew

`draw` takes a seed from the system, draws models of 0.1 to 4 billion parameters, batches and recomputation, and asks
`planner estimate` for each: nothing of it has run. `run` trains as torchtitan joins it (fp32 parameters, cast to bf16
as they are gathered, gradients reduced in fp32, fused AdamW, clipping), times steps, counts peak memory as PyTorch's
allocator does, and adds up the kernels of one step: how long the GPU was busy, and the twelve that took most of it.
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
from pathlib import Path
from typing import Any

LEAST_S, MOST_S, RATE = 0.06, 0.7, 4e14
"""Steps that are drawn last so long by a rough rate in FLOP/s, which no prediction sees."""
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()"]
KERNELS = {"flash2": "FLASH_ATTENTION", "flash3": "CUDNN_ATTENTION"}
"""planner's kernels, as PyTorch names its own that run so: FlashAttention 2, and cuDNN's."""


def drawn(seed: int, count: int) -> dict[str, dict[str, Any]]:
    """So many cases by name, every third with full recomputation."""
    chance = random.Random(seed)
    return {f"{i + 1:02d}": _case(chance, "full" if i % 3 == 2 else "none") for i in range(count)}


def _case(chance: random.Random, recompute: str) -> dict[str, Any]:
    while True:
        heads, width = chance.choice([8, 12, 16, 20, 24, 32, 40]), chance.choice([64, 128])
        hidden, layers = heads * width, chance.choice([2, 4, 6, 8, 12, 16, 24])
        kind, vocab = chance.choice(["llama", "llama", "qwen2", "gpt2"]), chance.choice([32000, 50304, 128256, 151936])
        ffn = 4 * hidden if kind == "gpt2" else 256 * round(chance.choice([8 / 3, 3.5, 4]) * hidden / 256)
        seq, grouped = chance.choice([1024, 2048, 4096, 8192]), chance.choice([1, 4])
        case = {
            "config": config(kind, hidden, layers, heads, grouped, ffn, vocab, seq), "seq_len": seq,
            "micro_batch": chance.choice([1, 2, 4, 8]), "micro_batches": chance.choice([1, 2, 4]),
            "recompute": recompute, "attention": chance.choice([*KERNELS]),
        }  # fmt: skip
        params = 2 * vocab * hidden + layers * (4 * hidden**2 + (2 if kind == "gpt2" else 3) * hidden * ffn)
        tokens = case["micro_batch"] * case["micro_batches"] * seq
        flop = 6.0 * params * tokens * (4 / 3 if recompute == "full" else 1.0)
        logits = 14 * case["micro_batch"] * seq * vocab
        if 1e8 <= params <= 4e9 and LEAST_S <= flop / RATE <= MOST_S and 16 * params + logits < 60e9:
            return case | {"parameters": params}


def config(
    kind: str, hidden: int, layers: int, heads: int, grouped: int, ffn: int, vocab: int, seq: int
) -> dict[str, Any]:
    """A configuration of transformers'."""
    ends = {"vocab_size": vocab, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        shape = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": ffn, "n_positions": seq}
        shape["activation_function"] = "gelu"  # one operation; the default, gelu_new, is eight
        return {"model_type": kind} | shape | none | ends
    return ends | {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads // grouped, "intermediate_size": ffn, "max_position_embeddings": seq,
    }  # fmt: skip


def predicted(case: dict[str, Any], cluster: str, framework: str) -> dict[str, Any]:
    """What `planner estimate` says of a case: seconds, their interval and parts, bytes without context and NCCL."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "config.json")
        model.write_text(json.dumps(case["config"]), encoding="utf-8")
        given = [
            "--cluster", cluster, "--framework", framework, "--dp", "1", "--zero", "3", "--precision", "bf16",
            "--seq-len", str(case["seq_len"]), "--micro-batch", str(case["micro_batch"]),
            "--global-batch", str(case["micro_batch"] * case["micro_batches"]),
            "--recompute", case["recompute"], "--attention", case["attention"],
            *([] if case["config"]["model_type"] == "gpt2" else ["--no-fused-norm"]),
        ]  # fmt: skip
        done = subprocess.run(
            [*PLANNER, "estimate", str(model), *given, "--json"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    record = json.loads(done.stdout)
    parts = record["memory_parts_gib"]
    kept = {name: record[name] for name in ("step_time_s", "step_time_interval_s", "time_s", "memory_parts_gib", "mfu")}
    return kept | {"bytes": 2.0**30 * (sum(parts.values()) - parts["reserved"])}


def measured(case: dict[str, Any], steps: int, trace: Path | None = None) -> dict[str, Any]:
    """Seconds of each step after two, peak bytes, and of a step's kernels the milliseconds and launches by name."""
    import torch
    from own_training import Stage, loss_of, model_of, shard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        model = model_of(case)
    if case["recompute"] == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    count = case["config"].get("num_hidden_layers") or case["config"]["n_layer"]
    stage = Stage(model, list(range(count)), first=True, last=True)
    del model
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard(stage, init_device_mesh("cuda", (1,)), 3, mp_policy=policy)
    adam = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)
    shape = (case["micro_batch"] * case["micro_batches"], case["seq_len"])
    tokens = torch.randint(0, case["config"]["vocab_size"], shape, device="cuda")

    def step() -> None:
        for some in tokens.chunk(case["micro_batches"]):
            (loss_of(stage(some), some) / case["micro_batches"]).backward()
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    seconds = []
    with sdpa_kernel(getattr(SDPBackend, KERNELS[case["attention"]])):
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        for _ in range(steps):
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        found = {
            "seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }  # fmt: skip
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    sums = {e.key: [e.self_device_time_total / 1e3, e.count] for e in profile.key_averages()}
    busy = {"busy_ms": sum(one[0] for one in sums.values())}
    return found | busy | {"kernels": dict(sorted(sums.items(), key=lambda item: -item[1][0])[:12])}


def run(cases: Path, result: Path, steps: int, traces: Path | None) -> None:
    """Every case in turn; a failure is kept by its message, and the file is written after each."""
    import gc

    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    torch.manual_seed(0)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": {}}
    for name, case in json.loads(cases.read_text(encoding="utf-8"))["cases"].items():
        start = time.perf_counter()
        try:
            found["cases"][name] = measured(case, steps, None if traces is None else traces / f"{name}.json.gz")
        except (RuntimeError, ValueError, TypeError) as error:
            found["cases"][name] = {"failed": str(error)[:600]}
        gc.collect()
        one = found["cases"][name]
        said = (
            one.get("failed")
            or f"{statistics.median(one['seconds']) * 1e3:.1f} ms, {one['peak_bytes'] / 2**30:.1f} GiB"
        )
        print(f"{name} {said} ({time.perf_counter() - start:.0f} s)", flush=True)
        result.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def table(work: dict[str, Any], found: dict[str, Any], cluster: str | None, framework: str) -> str:
    """Predicted beside measured, as Markdown."""
    lines = [
        f"{found['device']}, PyTorch {found['torch']}; {len(found['cases'])} cases, seed {work['seed']}.", "",
        "| | model | billion | batch | attention | recompute | ms | busy | predicted | error | of busy | GiB | error |",
        "| --- | --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    times, busy, bytes_off, held = [], [], [], []
    for name, one in found["cases"].items():
        case = work["cases"][name]
        says = work["predicted"][name] if cluster is None else predicted(case, cluster, framework)
        head = (
            f"| {name} | {case['config']['model_type']} | {case['parameters'] / 1e9:.2f} | {case['micro_batches']} x "
        )
        head += f"{case['micro_batch']} x {case['seq_len']} | {case['attention']} | {case['recompute']} "
        if "failed" in one:
            lines.append(f"{head}| {one['failed'].splitlines()[0][:60]} | | {says['step_time_s'] * 1e3:.1f} | | | | |")
            continue
        took = statistics.median(one["seconds"])
        low, high = says["step_time_interval_s"]
        times.append(says["step_time_s"] / took - 1.0)
        bytes_off.append(says["bytes"] / one["peak_bytes"] - 1.0)
        held.append(low <= took <= high)
        busy.append(says["step_time_s"] * 1e3 / one["busy_ms"] - 1.0)
        lines.append(
            f"{head}| {took * 1e3:.1f} | {one['busy_ms']:.1f} | {says['step_time_s'] * 1e3:.1f} | {times[-1]:+.1%} "
            f"| {busy[-1]:+.1%} | {one['peak_bytes'] / 2**30:.2f} | {bytes_off[-1]:+.1%} |"
        )
    for what, errors in (("time", times), ("time beside what the GPU was busy", busy), ("memory", bytes_off)):
        sizes = sorted(map(abs, errors))
        lines.append(
            f"\n{what}: mean error {statistics.mean(sizes):.1%}, median {statistics.median(sizes):.1%}, "
            f"worst {sizes[-1]:.1%}, mean with sign {statistics.mean(errors):+.1%}."
        )
    lines.append(f"\n{sum(held)} of {len(held)} in the 80 % interval.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "run", "table"])
    parser.add_argument("cases", type=Path)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--cluster", help="a cluster or its file; of `table`: ask anew")
    parser.add_argument("--framework", default="transformers")
    parser.add_argument("--seed", type=int, help="default: from the system")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--traces", type=Path, help="a folder for each case's Kineto trace of one step")
    given = parser.parse_args()
    if given.what == "draw":
        seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
        cases = drawn(seed, given.count)
        says = {name: predicted(case, given.cluster or "dgx-h200", given.framework) for name, case in cases.items()}
        given.cases.write_text(
            json.dumps({"seed": seed, "cases": cases, "predicted": says}, indent=1), encoding="utf-8"
        )
    elif given.what == "run":
        run(given.cases, given.result, given.steps, given.traces)
    else:
        work, found = (json.loads(path.read_text(encoding="utf-8")) for path in (given.cases, given.result))
        print(table(work, found, given.cluster, given.framework))


if __name__ == "__main__":
    main()
