"""Real PyTorch training on this machine's processors, predicted from a probe alone and measured: the way of a user.

    python benchmarks/own_machine.py --work own.json --write docs/own-machine.md
    python benchmarks/own_machine.py --memory # peak memory alone

1. Draws 30 configurations (models of 1 to 100 million parameters, layouts, batches) by a seed from the system.
2. planner probe, run under torchrun on 1, 2 and 4 processes; planner calibrate --probe: a profile of each.
3. planner estimate: step time and memory of each configuration, before anything of it has run.
4. Runs them (`own_training.py`: transformers' models, PyTorch's FSDP2, DDP, tensor plans and pipelines over gloo) in
   rounds, each configuration once a round, so that what changes on the machine in between touches all alike.
5. Compares: the median of all timed steps with the prediction, the same with one run as anchor (`--anchor`'s update of
   the probe's figures), the order of configurations on as many processes, and PyTorch's own count of peak memory. The
   noise floor is each configuration against itself: odd rounds beside even ones.

Every process has one thread and one processor: process r of n runs on processor r * cores // n. Where n exceeds the
cores neighbours share one, in the probe as in the run. Everything done is kept in --work: a run that was killed goes
on where it stopped. Needs transformers beside planner and torch (pip install transformers).
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
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORES = os.cpu_count() or 1
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()"]
CLUSTER, FRAMEWORK = "workstation-cpu", "transformers-cpu"
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62), "MALLOC_TOP_PAD_": str(2**26)}
"""glibc's settings with which a process keeps what it freed, as the allocators that PyTorch's tuning guide names do."""
LEAST_S, MOST_S, RATE = 0.15, 0.9, 60e9
"""Step times that are drawn: between these by a rough rate in FLOP/s of a processor, which no prediction sees."""

ONE: dict[str, Any] = {
    "pp": 1, "dp": 1, "tp": 1, "zero": 0, "schedule": "1f1b", "virtual_stages": 1, "recompute": "none"
}  # fmt: skip
LAYOUTS: dict[int, list[dict[str, Any]]] = {
    1: [{}, {}, {"recompute": "full"}],
    2: [
        {"dp": 2, "zero": 3},
        {"pp": 2},
        {"dp": 2},
        {"tp": 2},
        {"pp": 2, "schedule": "gpipe"},
        {"dp": 2, "zero": 2},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        {"pp": 2, "recompute": "full"},
        {"dp": 2, "zero": 3, "recompute": "full"},
    ],
    4: [
        {"dp": 4, "zero": 3},
        # Not with DistributedDataParallel, whose reducer fails where several forward passes come before a backward one.
        {"pp": 2, "dp": 2, "zero": 1},
        {"dp": 4},
        {"dp": 2, "zero": 3, "tp": 2},
        {"pp": 2, "dp": 2, "zero": 1, "schedule": "interleaved", "virtual_stages": 2},
        {"pp": 2, "tp": 2, "schedule": "gpipe"},
        # Four stages on fewer cores are no cluster of equals: while one waits, its neighbour has their core alone.
        *([{"pp": 4}, {"pp": 4, "schedule": "gpipe"}] if CORES >= 4 else []),
    ],
}
SHARES = {1: 9, 2: 12, 4: 9}
"""Of thirty configurations, those on so many processes."""


def drawn(seed: int, count: int) -> dict[str, dict[str, Any]]:
    """So many configurations by name: layouts in turn from a drawn one on, the rest by chance."""
    chance, out = random.Random(seed), {}
    for world, share in SHARES.items():
        first = chance.randrange(len(LAYOUTS[world]))
        for i in range(round(count * share / 30)):
            layout = ONE | LAYOUTS[world][(first + i) % len(LAYOUTS[world])]
            case = _case(chance, layout)
            out[f"{world}-{i + 1}"] = case
    return out


def _case(chance: random.Random, layout: dict[str, Any]) -> dict[str, Any]:
    """A model and batches for a layout whose step is neither too short to time nor too long for a round."""
    world = layout["pp"] * layout["dp"] * layout["tp"]
    while True:
        heads, width = chance.choice([2, 4, 6, 8, 12]), chance.choice([32, 64])
        hidden, layers = heads * width, chance.choice([4, 8, 12])
        vocab, seq = 1024 * chance.choice([1, 2, 4, 8, 16, 32]), chance.choice([64, 128, 256, 512])
        kind = "llama" if layout["tp"] > 1 else chance.choice(["llama", "llama", "qwen2", "gpt2"])
        ffn = 4 * hidden if kind == "gpt2" else 32 * round(chance.choice([8 / 3, 3.5, 4]) * hidden / 32)
        case = layout | {
            "config": _config(kind, hidden, layers, heads, chance.choice([1, 2]), ffn, vocab, seq), "seq_len": seq,
            "micro_batch": chance.choice([1, 2, 4]), "micro_batches": chance.choice([1, 2, 4, 8]),
        }  # fmt: skip
        params = 2 * vocab * hidden + layers * (4 * hidden**2 + (2 if kind == "gpt2" else 3) * hidden * ffn)
        tokens = case["micro_batch"] * case["micro_batches"] * seq * layout["dp"]
        flop = 6.0 * params * tokens * (4 / 3 if layout["recompute"] == "full" else 1.0)
        enough = layout["pp"] == 1 or case["micro_batches"] >= 2 * layout["pp"]
        enough = enough and case["config"].get("num_key_value_heads", heads) % layout["tp"] == 0
        if 1e6 <= params <= 1e8 and enough and LEAST_S <= flop / min(world, CORES) / RATE <= MOST_S:
            return case | {"parameters": params}


def _config(
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


def world_of(name: str) -> int:
    """On how many processes a configuration runs."""
    return int(name.split("-", maxsplit=1)[0])


def torchrun(world: int, *arguments: str) -> None:
    """A Python program on so many processes, each with its processor and one thread."""
    pin = f'exec taskset -c $((LOCAL_RANK * {CORES} / {world})) {sys.executable} "$@"'
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--no-python"]
    quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"}
    quiet |= KEEP_MEMORY
    done = subprocess.run(
        [*command, "bash", "-c", pin, "bash", *arguments], env=os.environ | quiet, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line or "[rank0]" in line]
        sys.exit("\n".join([" ".join(arguments), *(said or done.stderr.splitlines())[-40:]]))


def planner(*arguments: str) -> str:
    done = subprocess.run([*PLANNER, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"planner {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def probe(folder: Path, world: int, name: str) -> dict[str, Any]:
    """Probe this machine on so many processes, and make its profile: PROFILE/clusters/workstation-cpu.toml."""
    planner("probe", "--write", str(folder / "probe.py"))
    result, profile = str(folder / f"{name}.json"), str(folder / name)
    torchrun(world, str(folder / "probe.py"), "--output", result)
    given = ["--framework", FRAMEWORK, "--profile", profile]
    return json.loads(planner("calibrate", "--probe", result, "--cluster", CLUSTER, *given, "--json"))  # type: ignore[no-any-return]


def predicted(folder: Path, profile: str | None, case: dict[str, Any]) -> dict[str, float]:
    """Step seconds, and peak bytes without what a process takes beside PyTorch's tensors, by planner estimate.

    profile: the folder that a probe was written to; None for the shipped one, whose bytes are the same.
    """
    model, options = written_model(folder, case), layout_of(case)
    options |= {"seq_len": case["seq_len"]} | profiles(folder, profile)
    given = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    norm = ["--no-sequence-parallel"] if case["tp"] > 1 else []  # as `tensor_parallel` cuts the models
    norm += [] if case["config"]["model_type"] == "gpt2" else ["--no-fused-norm"]
    record = json.loads(planner("estimate", str(model), *given, *norm, "--json"))
    return {"step_time_s": record["step_time_s"], "bytes": _tensor_bytes(record)} | {"parts": record["time_s"]}


def written_model(folder: Path, case: dict[str, Any]) -> Path:
    """A file of transformers' configuration of a case."""
    from transformers import AutoConfig

    config, path = dict(case["config"]), folder / "config.json"
    AutoConfig.for_model(config.pop("model_type"), **config).to_json_file(path)
    return path


def layout_of(case: dict[str, Any]) -> dict[str, Any]:
    """A case's layout by planner's names."""
    names = ("pp", "dp", "tp", "zero", "schedule", "recompute", "micro_batch")
    more = {"virtual_stages": case["virtual_stages"]} if case["virtual_stages"] > 1 else {}
    batch = case["micro_batch"] * case["micro_batches"] * case["dp"]
    return {name: case[name] for name in names} | more | {
        "global_batch": batch, "precision": "fp32", "attention": "flash2"
    }  # fmt: skip


def profiles(folder: Path, profile: str | None) -> dict[str, str]:
    """The cluster and the framework of a probe, or as shipped."""
    own = {"cluster": ("clusters", CLUSTER), "framework": ("frameworks", FRAMEWORK)}
    if profile is None:
        return {kind: name for kind, (_, name) in own.items()}
    return {kind: str(folder / profile / there / f"{name}.toml") for kind, (there, name) in own.items()}


def _tensor_bytes(record: dict[str, Any]) -> float:
    parts = record["memory_parts_gib"]
    return 2.0**30 * float(sum(parts.values()) - parts["reserved"])


def measure(folder: Path, cases: dict[str, dict[str, Any]], *more: str) -> dict[str, Any]:
    """What `own_training.py` finds of cases on equally many processes."""
    given, result = folder / "cases.json", folder / "result.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    torchrun(world_of(next(iter(cases))), str(HERE / "own_training.py"), str(given), str(result), *more)
    return json.loads(result.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def memory_alone(cases: dict[str, dict[str, Any]], folder: Path) -> str:
    """Peak bytes predicted and counted of each configuration, as lines; the furthest off last."""
    folder.mkdir(exist_ok=True)
    counted: dict[str, int] = {}
    for world in SHARES:
        counted |= measure(folder, {n: c for n, c in cases.items() if world_of(n) == world}, "--memory")
    error = {name: predicted(folder, None, case)["bytes"] / counted[name] - 1.0 for name, case in cases.items()}
    last = sorted(error, key=lambda name: abs(error[name]))
    lines = [
        f"{name:5} {layout_text(cases[name]):40} {counted[name] / 2**20:6.0f} MiB {error[name]:+.1%}" for name in last
    ]
    within = sum(abs(e) <= 0.05 for e in error.values())
    middle = statistics.median(map(abs, error.values()))
    return "\n".join([*lines, f"{middle:.1%} off in the median, {within} of {len(error)} within 5 %"])


def relative_errors(work: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each measured configuration: seconds, predicted over measured minus one, and odd over even rounds."""
    out = {}
    for name in work["cases"]:
        rounds = [one["seconds"][name] for one in work["rounds"] if name in one["seconds"]]
        if not rounds or name not in work["predicted"]:
            continue
        measured = statistics.median(x for steps in rounds for x in steps)
        row = {"measured_s": measured, "step_error": work["predicted"][name]["step_time_s"] / measured - 1.0}
        halves = [[x for steps in rounds[i::2] for x in steps] for i in (0, 1)]
        if all(halves):
            row["noise"] = statistics.median(halves[0]) / statistics.median(halves[1]) - 1.0
        if name in work["peak_bytes"]:
            row["memory_error"] = work["predicted"][name]["bytes"] / work["peak_bytes"][name] - 1.0
        out[name] = row
    return out


def slopes(folder: Path, profile: str, case: dict[str, Any]) -> list[float]:
    """How the logarithm of a case's step follows those of each kind of time, by the probe's profiles."""
    from planner.api.frameworks import layout_under
    from planner.api.inputs import Cluster, Model, setup_of
    from planner.calibration.anchor import layout_slopes

    own, model = profiles(folder, profile), Model(written_model(folder, case), seq_len=case["seq_len"])
    setup = setup_of(model, Cluster(own["cluster"]), own["framework"])
    more = {"sequence_parallel": False} if case["tp"] > 1 else {}
    more |= {} if case["config"]["model_type"] == "gpt2" else {"fused_norm": False}
    return [float(x) for x in layout_slopes(setup, layout_under(setup, **layout_of(case), **more))[0]]


def anchored(work: dict[str, Any], rows: dict[str, dict[str, float]]) -> list[float]:
    """Each step's error with one other run on as many processes as anchor of the probe's figures; every other in turn.

    The update is that of `--anchor`: each kind of time moves as far as the run and the figures' spread say.
    """
    import numpy as np

    from planner.calibration.anchor import spread, update

    of, out = {name: np.array(work["slopes"][name]) for name in rows}, []
    for known in rows:
        shift = update(of[known][None], -np.log([1.0 + rows[known]["step_error"]]), spread()).shift
        others = [name for name in rows if name != known and world_of(name) == world_of(known)]
        out += [(1.0 + rows[name]["step_error"]) * float(np.exp(of[name] @ shift)) - 1.0 for name in others]
    return out


def order(work: dict[str, Any], rows: dict[str, dict[str, float]]) -> tuple[int, int]:
    """Of pairs whose measured times differ by 10 % or more, those that are predicted in the right order, and all."""
    right = total = 0
    for a, b in combinations(rows, 2):
        seconds = [rows[name]["measured_s"] for name in (a, b)]
        if max(seconds) >= 1.1 * min(seconds):
            said = [work["predicted"][name]["step_time_s"] for name in (a, b)]
            right, total = right + ((said[0] < said[1]) == (seconds[0] < seconds[1])), total + 1
    return right, total


def _line(what: str, errors: list[float], bar: str) -> str:
    if not errors:
        return f"| {what} | not measured | | {bar} |"
    sizes = sorted(map(abs, errors))
    return f"| {what} | {statistics.median(sizes):.1%} | {sizes[-1]:.1%} | {bar} |"


def tables(work: dict[str, Any]) -> str:
    """The result as Markdown: how far off, then each configuration."""
    rows = relative_errors(work)
    right, total = order(work, rows)
    have = [list(rows.values()), [row for row in rows.values() if "memory_error" in row]]
    lines = [
        f"{len(rows)} configurations, seed {work['seed']}, {len(work['rounds'])} rounds, {work['machine']}.", "",
        "| of the step | median error | worst | bars |", "| --- | ---: | ---: | --- |",
        _line("time, from the probe alone", [r["step_error"] for r in have[0]], "10 %, 25 %"),
        _line("time, with one run on as many processes as anchor", anchored(work, rows), "5 %, 15 %"),
        _line("peak memory, as PyTorch counts it", [r["memory_error"] for r in have[1]], "all within 5 %"),
        _line("noise: odd rounds beside even ones", [r["noise"] for r in have[0] if "noise" in r], ""),
        "", f"Of {total} pairs that differ by 10 % or more, {right} ({right / max(total, 1):.0%}) are predicted in the "
        "right order; the bar is 90 %.", "",
        "| | model | million | layout | batch | measured | predicted | error | noise | peak MiB | error |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, row in rows.items():
        case = work["cases"][name]
        memory = ["", ""]
        if "memory_error" in row:
            memory = [f"{work['peak_bytes'][name] / 2**20:.0f}", f"{row['memory_error']:+.1%}"]
        lines.append(
            f"| {name} | {case['config']['model_type']} | {case['parameters'] / 1e6:.1f} | {layout_text(case)} "
            f"| {case['micro_batches']} x {case['micro_batch']} x {case['seq_len']} | {row['measured_s'] * 1e3:.0f} ms "
            f"| {work['predicted'][name]['step_time_s'] * 1e3:.0f} ms | {row['step_error']:+.1%} "
            f"| {row.get('noise', 0.0):+.1%} | {memory[0]} | {memory[1]} |"
        )
    return "\n".join(lines)


def layout_text(case: dict[str, Any]) -> str:
    """A layout in a few words."""
    words = [f"{name} {case[name]}" for name in ("dp", "tp", "pp") if case[name] > 1] or ["one process"]
    if case["dp"] > 1:
        words.append(f"zero {case['zero']}")
    if case["pp"] > 1:
        words.append(case["schedule"])
    return " ".join([*words, *(["recompute"] if case["recompute"] == "full" else [])])


def write_between(page: Path, text: str) -> None:
    """Put the result between a page's markers."""
    marks = ("<!-- own_machine.py -->", "<!-- end -->")
    before, _, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, found, after = rest.partition(marks[1])
    if not found:
        sys.exit(f"{page}: has no lines {marks[0]} and {marks[1]}")
    page.write_text(f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}", encoding="utf-8")


def save(path: Path, work: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(work, indent=1), encoding="utf-8")
    part.replace(path)


def run(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All that is not in the work file yet."""
    seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
    work: dict[str, Any] = {"seed": seed, "machine": f"{CORES} processors", "probes": {}, "predicted": {}}
    work |= {"peak_bytes": {}, "rounds": [], "cases": drawn(seed, given.configurations)}
    if path.exists():
        work = json.loads(path.read_text(encoding="utf-8"))
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    worlds = {w: {n: c for n, c in work["cases"].items() if world_of(n) == w} for w in SHARES}
    start = time.monotonic()

    def say(what: str) -> None:
        save(path, work)
        print(f"{time.monotonic() - start:6.0f} s  {what}", flush=True)

    for world in worlds:
        if str(world) not in work["probes"]:
            work["probes"] |= {str(world): probe(folder, world, f"probe-{world}")}
            say(f"probed on {world} processes")
    for name, case in work["cases"].items():
        if name not in work["predicted"]:
            work["predicted"] |= {name: predicted(folder, f"probe-{world_of(name)}", case)}
        if name not in work.setdefault("slopes", {}):
            work["slopes"] |= {name: slopes(folder, f"probe-{world_of(name)}", case)}
    say("predicted")
    for cases in worlds.values():
        if set(cases) - set(work["peak_bytes"]):
            work["peak_bytes"] |= measure(folder, cases, "--memory")
            say("counted memory")
    while len(work["rounds"]) < given.rounds or not _whole(work):
        if not work["rounds"] or _whole(work):
            work["rounds"].append({"seconds": {}})
        for cases in worlds.values():
            if set(cases) - set(work["rounds"][-1]["seconds"]):
                work["rounds"][-1]["seconds"] |= measure(folder, cases, "--steps", str(given.steps))
        say(f"round {len(work['rounds'])} of {given.rounds}")
    return work


def _whole(work: dict[str, Any]) -> bool:
    return bool(work["rounds"]) and not set(work["cases"]) - set(work["rounds"][-1]["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.mkdtemp()) / "own.json", help="what is done so far")
    parser.add_argument("--seed", type=int, help="of the configurations; default: from the system")
    parser.add_argument("--configurations", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a configuration in a round")
    parser.add_argument("--write", type=Path, help="a page with the markers between which the result goes")
    parser.add_argument("--memory", action="store_true", help="peak memory alone, in two minutes: nothing is timed")
    given = parser.parse_args()
    if given.memory:
        seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
        print(f"seed {seed}\n{memory_alone(drawn(seed, given.configurations), given.work.with_suffix(''))}")
        return
    text = tables(run(given.work, given))
    print(text)
    if given.write is not None:
        write_between(given.write, text)


if __name__ == "__main__":
    main()
