"""What of planner needs a GPU, checked on one NVIDIA GPU within 20 minutes: CuPy's arrays against numpy's.

Every kernel, schedule, choice and precision of the trainer, both kinds of offload, streams, NCCL with one rank; then
passes are timed, prices fitted to them, a training's step predicted and measured; last PyTorch's kernels
by `planner probe`. Writes a JSON file and a page. Needs CuPy (pip install '.[gpu]'); what is missing is said.
Run on an H200 on 26 November 2026: docs/on-a-gpu.md.

python benchmarks/gpu_check.py                      all, on the GPU: gpu-check.json and gpu-check.md
python benchmarks/gpu_check.py --device strict      its logic, on a stand-in that refuses what CuPy refuses
python benchmarks/gpu_check.py --only kernels       some sections
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from trainer_prediction import training
from trainer_step import predicted_step_s

from planner.choices.enumerations import Recompute
from planner.models import Transformer, from_shape
from planner.schedules import SCHEDULES, Pipeline
from planner.trainer import attention, functions
from planner.trainer.arrays import on_host
from planner.trainer.executor import Batch, Live
from planner.trainer.host_arena import HostArena
from planner.trainer.optimizers import SGD, Adam
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker

MINUTES = 20.0
SEQUENCES = 16
NEAR = {np.float64: 1e-10, np.float32: 2e-4, np.float16: 5e-2}
"""Of the largest element: sums in another order round by so much, some hundred terms of a format's last digit each."""
LATE = 60
"""Products one after another, which a GPU needs a while for."""
PLANNER = [sys.executable, "-c", "from planner.cli import main; main()"]


@dataclass
class Check:
    """One thing checked: how far it was off, what was allowed, or why it could not be."""

    name: str
    passed: bool
    off: float = 0.0
    allowed: float = 0.0
    said: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """What a run found."""

    device: str
    checks: dict[str, list[Check]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Section and name of what failed."""
        return [f"{section}: {c.name}" for section, found in self.checks.items() for c in found if not c.passed]


def main() -> int:
    """0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["gpu", "strict", "cpu"], default="gpu")
    parser.add_argument("--only", action="append", choices=[*SECTIONS], help="This section; may be repeated.")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"), help="The page lies beside it, .md.")
    asked = parser.parse_args()
    xp, device = arrays(asked.device)
    report = run(xp, device, asked.only or [*SECTIONS])
    asked.output.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    asked.output.with_suffix(".md").write_text(page(report), encoding="utf-8")
    print(page(report))
    return 1 if report.failed else 0


def arrays(device: str) -> tuple[Any, str]:
    """The array library and what it runs on."""
    if device == "strict":
        from strict_arrays import StrictArrays

        return StrictArrays(), "numpy behind benchmarks/strict_arrays.py: no GPU"
    from planner.trainer.arrays import xp_for

    xp = xp_for(device)
    if device == "cpu":
        return xp, "numpy: no GPU"
    name = xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return xp, f"{name}, CuPy {xp.__version__}, CUDA {xp.cuda.runtime.runtimeGetVersion()}, {platform.node()}"


def run(xp: Any, device: str, sections: list[str], minutes: float = MINUTES) -> Report:
    """The sections in their order; those that would begin after the time is up are left out, and said."""
    report, start = Report(device), time.perf_counter()
    for name in sections:
        if (time.perf_counter() - start) / 60.0 > minutes:
            report.skipped[name] = f"{minutes:g} minutes were over"
            continue
        report.checks[name] = []
        for check in SECTIONS[name](xp, report):
            report.checks[name].append(check)
        if not report.checks[name] and name not in report.skipped:
            report.skipped[name] = "nothing to check"
    report.seconds = time.perf_counter() - start
    return report


def compared(name: str, of: Callable[[Any], Any], xp: Any, allowed: float) -> Check:
    """Whether a calculation gives on the device what it gives on the host: named arrays, or a list of them."""
    start = time.perf_counter()
    try:
        there, here = of(xp), of(np)
        there, here = (x if isinstance(x, dict) else dict(enumerate(x)) for x in (there, here))
        assert there.keys() == here.keys(), f"{sorted(there)} for {sorted(here)}"
        off = max(_off(on_host(there[key]), np.asarray(here[key])) for key in here)
        check = Check(name, bool(off <= allowed), off, allowed)
    except Exception as error:  # whatever a library raises is what this is to find
        check = Check(name, False, said=f"{type(error).__name__}: {error}"[:300])
    return replace(check, seconds=time.perf_counter() - start)


def _off(there: Any, here: Any) -> float:
    if np.shape(there) != here.shape or not np.isfinite(there).all():
        return float("inf")
    return float(np.abs(there - here).max() / max(np.abs(here).max(), 1e-300))


def kernels(xp: Any, report: Report) -> Iterator[Check]:
    """The trainer's functions, in both number formats that numpy has whole."""
    for dtype in (np.float64, np.float32):
        rng = np.random.default_rng(0)
        x, y, w, gate = (rng.normal(size=size).astype(dtype) for size in ((2, 8, 16), (2, 8, 16), (16, 16), (2, 8, 16)))
        q = rng.normal(size=(2, 2, 3, 40, 8)).astype(dtype)
        k, v = (rng.normal(size=(2, 2, 40, 8)).astype(dtype) for _ in range(2))

        def attended(xp: Any, q: Any = q, k: Any = k, v: Any = v) -> list[Any]:
            q, k, v = (xp.asarray(a) for a in (q, k, v))
            out, log = attention.attend(xp, q, k, v)
            dk, dv = xp.zeros_like(k), xp.zeros_like(v)
            return [out, log, attention.attend_gradient(xp, out, q, k, v, out, log, dk, dv), dk, dv]

        def normed(xp: Any, rms: bool, x: Any = x, y: Any = y) -> list[Any]:
            unit, scale = functions.norm(xp, xp.asarray(x), rms, 1e-5)
            gain, dgain = xp.ones(16, dtype=x.dtype), xp.zeros(16, dtype=x.dtype)
            functions.norm_weight_gradient(xp.asarray(y), unit, dgain, None)
            return [unit, functions.norm_input_gradient(xp.asarray(y), unit, scale, gain, rms), dgain]

        def products(xp: Any, x: Any = x, y: Any = y, w: Any = w) -> list[Any]:
            x, y, w = (xp.asarray(a) for a in (x, y, w))
            dw = xp.zeros_like(w)
            functions.add_product(x, y, dw)
            return [functions.product(x, w), functions.product_input_gradient(y, w), dw]

        def turned(xp: Any, q: Any = q) -> list[Any]:
            table = functions.rotary_table(xp, xp.arange(40), 8, q.dtype)
            return [
                functions.rotate(xp, xp.asarray(q), table),
                functions.rotate(xp, xp.asarray(q), table, inverse=True),
            ]

        def activations(xp: Any, x: Any = x, y: Any = y, gate: Any = gate) -> list[Any]:
            x, y, gate = (xp.asarray(a) for a in (x, y, gate))
            return [
                functions.gelu(xp, x), functions.gelu_gradient(xp, y, x), functions.swiglu(xp, gate, x),
                *functions.swiglu_gradient(xp, y, gate, x),
            ]  # fmt: skip

        said = np.dtype(dtype).name
        yield compared(f"products, {said}", products, xp, NEAR[dtype])
        yield compared(f"layer norm, {said}", lambda xp: normed(xp, rms=False), xp, NEAR[dtype])
        yield compared(f"RMS norm, {said}", lambda xp: normed(xp, rms=True), xp, NEAR[dtype])
        yield compared(f"activations, {said}", activations, xp, NEAR[dtype])
        yield compared(f"rotary positions, {said}", turned, xp, NEAR[dtype])
        yield compared(f"attention, {said}", attended, xp, NEAR[dtype])


def model(family: str = "llama", **changes: Any) -> Transformer:
    """A small one."""
    shape = from_shape(family=family, layers=8, hidden=16, ffn=24, heads=4, kv_heads=4, vocab=24, seq_len=8)
    return replace(shape, **changes)


def task(schedule: str = "1f1b", pipe: Pipeline | None = None, of: Transformer | None = None, **choices: Any) -> Task:
    """A task of the small model."""
    pipe = pipe or Pipeline(p=1, m=4)
    choices = {"dtype": np.float64, "bounds": tuple(range(0, 9, 8 // pipe.k))} | choices
    return Task(
        model=of or model(), rows=SCHEDULES[schedule].order(pipe).rows(), micro_batches=pipe.m,
        layer_at_a_time=SCHEDULES[schedule].layer_at_a_time, **choices,
    )  # fmt: skip


def trained(asked: Task, steps: int = 0) -> Callable[[Any], dict[str, Any]]:
    """All gradients of a step, or the parameters after some, of a library's arrays; the loss with them."""

    def of(xp: Any) -> dict[str, Any]:
        tokens = np.random.default_rng(1).integers(0, asked.model.vocab, (SEQUENCES, asked.model.seq_len + 1))

        def program(communicator: Any) -> Any:
            worker = Worker(communicator, asked, Adam() if steps else SGD())
            per = SEQUENCES // asked.dp
            mine = tokens[worker.mesh.replica * per :][:per].reshape(asked.micro_batches, -1, tokens.shape[1])
            there = communicator.xp.asarray(mine)
            batch = Batch(tokens=there[..., :-1], targets=there[..., 1:], num_tokens=tokens[:, 1:].size)
            loss = [worker.step(batch) for _ in range(steps)][-1] if steps else worker.gradients(batch)
            return worker.whole("parameters" if steps else "gradients") | {"loss": np.array(loss)}

        out: dict[str, Any] = {}
        for found in run_serial(xp, asked.num_ranks, program):
            out |= found
        return out

    return of


def schedules(xp: Any, report: Report) -> Iterator[Check]:
    """Every synchronous schedule, its smallest legal pipeline of two ranks."""
    for name, schedule in SCHEDULES.items():
        pipes = [Pipeline(p=2, m=4, v=v, k=k) for v in (1, 2, 4) for k in (1, 2)]
        legal = [pipe for pipe in pipes if not any(np.any(rule.broken) for rule in schedule.rules(pipe))]
        if schedule.synchronous and legal:
            yield compared(name, trained(task(name, legal[0])), xp, NEAR[np.float64])


MIXTURE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "moe_ffn": 12, "num_dense_layers": 0}
DEEPSEEK: dict[str, Any] = MIXTURE | {
    "num_shared_experts": 1, "num_experts": 8, "expert_groups": 4, "top_k_groups": 2, "router": "sigmoid 2.5",
    "num_mtp_layers": 2,
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "GPT": {"of": model("gpt")},
    "dp 2, zero 0": {"dp": 2},
    "dp 2, zero 1": {"dp": 2, "zero": 1},
    "dp 2, zero 2": {"dp": 2, "zero": 2},
    "dp 4, zero 3, two copies": {"dp": 4, "zero": 3, "dp_replicate": 2},
    "tp 2": {"tp": 2},
    "tp 2, sequence parallel": {"tp": 2, "sequence_parallel": True},
    "cp 2, ring": {"cp": 2},
    "cp 2, Ulysses": {"cp": 2, "ulysses": 2},
    "cp 2, gathered keys": {"cp": 2, "gathered_keys": True},
    "experts, ep 2": {"of": model(**MIXTURE), "dp": 2, "ep": 2},
    "experts, dropped tokens": {"of": model(**MIXTURE), "dp": 2, "ep": 2, "capacity_factor": 0.5},
    "shared experts, groups, multi-token prediction": {"of": model(**DEEPSEEK), "dp": 2, "ep": 2},
    "selective recomputation": {"recompute": Recompute.SELECTIVE},
    "full recomputation": {"recompute": Recompute.FULL},
    "full recomputation of three layers": {"recompute": Recompute.FULL, "recompute_layers": 3},
}


def choices(xp: Any, report: Report) -> Iterator[Check]:
    """Each way of sharing or repeating the work."""
    for name, way in WAYS.items():
        yield compared(name, trained(task(**way)), xp, NEAR[np.float64])


def precisions(xp: Any, report: Report) -> Iterator[Check]:
    """A step's gradients in each number format; 16 bits with a loss scale."""
    for dtype in NEAR:
        yield compared(np.dtype(dtype).name, trained(task(dtype=dtype)), xp, NEAR[dtype])


def offload(xp: Any, report: Report) -> Iterator[Check]:
    """Activations and the optimizer's state in host memory; arrays that leave while kernels still run."""
    for layers in (1, 3, 7):
        yield compared(f"activations of {layers} layers", trained(task(offload_layers=layers)), xp, NEAR[np.float64])
    for share in (0.5, 1.0):
        way = task(offload_fraction=share, dp=2, zero=1, clip=1.0)
        yield compared(f"{share:.0%} of the optimizer's state", trained(way, steps=3), xp, 1e-9)
    way = task(offload_fraction=1.0, offload_parameters=True, dp=2, zero=3, clip=1.0)
    yield compared("parameters and the optimizer's state", trained(way, steps=3), xp, 1e-9)

    def through(xp: Any) -> list[Any]:
        def program(communicator: Any) -> Any:
            arena = HostArena(communicator, Live().change)
            away = arena.leave({"x": _late(xp), "same": [1]})
            arena.settle()
            arena.come(away)
            return on_host(arena.back(away)["x"])

        return list(run_serial(xp, 1, program))

    yield compared("an array that is still computed as it leaves", through, xp, 1e-10)


def _late(xp: Any) -> Any:
    """An array whose kernels take a while on a device: whoever does not wait for them reads something else."""
    rng = np.random.default_rng(2)
    turn = xp.asarray(np.linalg.qr(rng.normal(size=(512, 512)))[0])  # keeps lengths: no rounding grows on the way
    x = xp.asarray(rng.normal(size=(512, 4096)))
    for _ in range(LATE):
        x = turn @ x
    return x


def streams(xp: Any, report: Report) -> Iterator[Check]:
    """What is read off the device, or sent by MPI's way through the host, was waited for."""
    from planner.trainer.mpi import MPICommunicator

    yield compared("copied to the host", lambda xp: [on_host(_late(xp))], xp, 1e-10)
    yield compared("sent by MPI", lambda xp: [MPICommunicator._out(None, _late(xp))], xp, 1e-10)  # type: ignore[arg-type]


def nccl(xp: Any, report: Report) -> Iterator[Check]:
    """NCCL's collectives with one rank, called past the shortcut for groups of one."""
    from planner.base.errors import InputError
    from planner.trainer.communicator import RankGroup
    from planner.trainer.mpi import NCCLCommunicator, load_nccl

    try:
        load_nccl(xp)
        communicator = NCCLCommunicator(xp)
    except InputError as error:
        report.skipped["nccl"] = str(error)
        return
    group, x = RankGroup("all", (0,)), np.arange(24.0).reshape(4, 6)
    for name, of in {
        "all_reduce": lambda y: communicator._all_reduce(y, group, "sum"),
        "all_gather": lambda y: communicator._all_gather(y, group, 0),
        "reduce_scatter": lambda y: communicator._reduce_scatter(y, group, 0),
    }.items():
        yield compared(name, lambda to, of=of: [of(to.asarray(x)) if to is xp else x], xp, 0.0)


def measured(xp: Any, report: Report) -> Iterator[Check]:
    """Passes timed and prices fitted to them; steps of a training predicted with them, and measured by the command."""
    if not isinstance(xp, type(np)):
        report.skipped["measured"] = "the commands know cpu and gpu alone"
        return
    device = "cpu" if xp is np else "gpu"
    with tempfile.TemporaryDirectory() as folder:
        file, start = Path(folder, "prices.toml"), time.perf_counter()
        passes = [sys.executable, str(Path(__file__).with_name("trainer_passes.py"))]
        train = ["--model", "gpt2", "--scale", "small", "--micro-batch", "4", "--micro-batches", "4"]
        for name, command in (
            ("passes", [*passes, str(file), "--quick", "--device", device]),
            ("train", [*PLANNER, "train", *train, "--steps", "20", "--device", device, "--json"]),
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            said = (done.stderr.strip().splitlines() or [""])[-1][:300]
            yield Check(name, done.returncode == 0, said=said, seconds=time.perf_counter() - start)
            if done.returncode:
                return
        prices = file.read_text(encoding="utf-8")
    predicted = predicted_step_s(training(train), tomllib.loads(prices)["seconds"], "serial")
    report.measured = steps_of(json.loads(done.stdout), predicted) | {"prices": prices}


def steps_of(record: dict[str, Any], predicted: float) -> dict[str, float]:
    """A step as measured, of a training's JSON, and as predicted."""
    step = float(record["step_time_s"])
    return {"step_s": step, "predicted_s": predicted, "off": predicted / step - 1.0}


def probe(xp: Any, report: Report) -> Iterator[Check]:
    """PyTorch's products, attention, copies and launches, by the script that `planner probe` writes."""
    ready = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", ready], capture_output=True, check=False).returncode:
        report.skipped["probe"] = "PyTorch is not installed, or sees no GPU"
        return
    with tempfile.TemporaryDirectory() as folder:
        script, found = Path(folder, "probe.py"), Path(folder, "probe.json")
        start = time.perf_counter()
        for name, command in (
            ("write", [*PLANNER, "probe", "--write", str(script)]),
            ("measure", [sys.executable, str(script), "--output", str(found)]),
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            said = (done.stderr.strip().splitlines() or [""])[-1][:300]
            yield Check(name, done.returncode == 0, said=said, seconds=time.perf_counter() - start)
            if done.returncode:
                return
        report.probe = json.loads(found.read_text(encoding="utf-8"))


SECTIONS: dict[str, Callable[[Any, Report], Iterator[Check]]] = {
    "kernels": kernels, "schedules": schedules, "choices": choices, "precisions": precisions, "offload": offload,
    "streams": streams, "nccl": nccl, "measured": measured, "probe": probe,
}  # fmt: skip


def page(report: Report) -> str:
    """The run as a page of Markdown."""
    lines = [
        "# Checked on a GPU", "", "Made by `python benchmarks/gpu_check.py`.", "",
        f"{report.device}. {report.seconds:.0f} s; failed: {', '.join(report.failed) or 'nothing'}.", "",
        "| section | checked | passed | farthest off (allowed) | seconds |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for section, checks in report.checks.items():
        if checks:
            worst = max(checks, key=lambda c: c.off / c.allowed if c.allowed else c.off)
            seconds = sum(c.seconds for c in checks)
            passed = sum(c.passed for c in checks)
            far = f"{worst.name}: {worst.off:.1e} ({worst.allowed:.0e})"
            lines.append(f"| {section} | {len(checks)} | {passed} | {far} | {seconds:.1f} |")
    lines += [""] + [f"- {name}: not checked, {why}" for name, why in report.skipped.items()]
    for section, checks in report.checks.items():
        lines += [f"- {section}, {c.name}: {c.said or f'off by {c.off:.1e}'}" for c in checks if not c.passed]
    if report.measured:
        m = report.measured
        lines += ["", f"A step took {m['step_s']:.4g} s, predicted {m['predicted_s']:.4g} s ({m['off']:+.1%})."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
