"""`planner train` as a user meets it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from planner.trainer.text import load_text
from tests.commands import planner
from tests.hang import HANG_S
from tests.trainer.mpirun import MPIRUN, mpirun, needs_mpi

PROGRAM = ["-c", "from planner.cli import main; main()"]
TINY = ["train", "--scale", "tiny", "--steps", "2"]


def plan(tmp_path, **changes) -> str:
    layout = {
        "schedule": "interleaved", "dp": 2, "tp": 2, "pp": 2, "virtual_stages": 2, "micro_batch": 2,
        "global_batch": 512, "zero": 1, "recompute": "selective", "sequence_parallel": True,
    }  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"model": "llama-13b", "best": [{"layout": layout | changes}]}))
    return str(path)


def test_a_plan_is_run_with_its_layout_and_schedule(tmp_path):
    done = planner(*TINY, plan(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["ranks"] == 8
    assert record["micro_batches"] == 4
    assert 0 < record["loss_last"] < record["loss_first"]
    assert set(record["sent_bytes"]) == {"tp", "dp", "pp", "loss", "world"}


def test_the_plan_that_recommend_prints_is_run(tmp_path):
    asked = planner("recommend", "llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "64",
                    "--json")  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(asked.stdout)
    done = planner(*TINY, str(path))
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    first = done.stderr.splitlines()[0]
    assert " tokens per step, 8 ranks; about " in first
    assert first.endswith(" to step 2 (--scale, --steps)")
    assert "step     2/2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scale", "huge"], "unknown scale 'huge'; allowed: large, medium, small, tiny"),
        (["--precision", "bf16"], "precision is 'bf16'; allowed: fp16, fp32, fp64"),
        (["--engine", "smoke"], "engine is 'smoke'; allowed: serial, mpi, nccl"),
        (["--engine", "nccl"], "nccl needs --device gpu"),
        (["--optimizer", "lion"], "unknown optimizer 'lion'"),
        (["--model", "gpt-oss-20b"], "has experts with biases, clamped gates, which the trainer has no layers for"),
        (["--schedule", "interleaved"], "interleaved needs at least 2"),
        (["--schedule", "zb-h2", "--pp", "4", "--micro-batches", "5"], "sequence_slices 1, micro-batches 5"),
        (["--schedule", "terapipe", "--pp", "2", "--virtual-stages", "2", "--slices", "2"], "sequence_slices 2, mic"),
        (
            ["--schedule", "2bw", "--pp", "2", "--allow-async", "--clip", "2"],
            "--clip is 2 with schedule 2bw; allowed: 0",
        ),
        (["--pp", "2", "--offload-layers", "9"], "illegal layout: offload-layers must be fewer than a virtual stage's"),
        (["--pp", "2", "--offload-layers", "9"], "got pp 2, virtual-stages 1, offload-layers 9, num_layers 2"),
        (["--recompute", "full", "--recompute-layers", "9"], "illegal layout: recompute-layers must not exceed layers"),
        (["--text", "/nowhere"], "/nowhere: can't be read"),
        (["--scale", "full", "--tp", "7", "--model", "gpt2"], "tp is 7; the trainer needs one that divides"),
        (["/nowhere.json"], "/nowhere.json: can't be read"),
    ],
)
def test_faults_are_one_line(arguments, said):
    done = planner(*TINY, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ep": 2}, "ep is 2; allowed: a divisor of the 0 experts"),
        ({"dp": "two"}, "layout.dp is 'two'; allowed: a whole number"),
        ({"tensor": 2}, "layout has unknown field tensor"),
        ({"virtual_stages": 1}, "interleaved needs at least 2 virtual stages"),
    ],
)
def test_bad_plans_are_one_line(tmp_path, changes, said):
    done = planner(*TINY, plan(tmp_path, **changes))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_out_of_memory_is_one_line():
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30,) * 2); " + PROGRAM[1]
    command = [sys.executable, "-c", limited, "train", "--scale", "full", "--model", "llama-7b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("planner: out of memory; try a smaller --scale")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_interrupt_leaves_no_traceback():
    # A shell that starts the tests in the background has interrupts ignored, and children inherit that.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + PROGRAM[1]
    command = [sys.executable, "-c", heeding, *TINY, "--steps", "1000000"]
    for ranks in ("1", "2"):
        process = subprocess.Popen([*command, "--dp", ranks], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            time.sleep(4.0)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
        assert process.returncode == 130
        assert "Traceback" not in said
        assert said.splitlines()[-1] == "planner: interrupted"


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_no_gpu_is_one_line():
    done = planner(*TINY, "--device", "gpu")
    assert done.returncode == 2
    assert "device is 'gpu' but CuPy is not installed; pip install '.[gpu]', or use cpu" in done.stderr


def test_the_noise_scale_is_printed():
    asked = (*TINY[:-1], "15", "--noise-scale", "--precision", "fp64")
    record = json.loads(planner(*asked, "--json").stdout)
    scale, error = record["noise_scale_sequences"], record["noise_scale_standard_error"]
    assert scale > 0
    assert error > 0
    assert record["noise_scale_unknown_because"] is None
    assert f"noise scale {scale:,.1f} +- {error:,.1f} sequences" in planner(*asked).stderr


def test_a_noise_scale_that_means_nothing_is_not_printed():
    record = json.loads(planner(*TINY, "--noise-scale", "--json").stdout)
    assert record["noise_scale_sequences"] is None
    assert record["noise_scale_standard_error"] is None
    assert record["noise_scale_unknown_because"] == "measured at 1 step; its error needs two"
    assert "noise scale not known: measured at 1 step; its error needs two" in planner(*TINY, "--noise-scale").stderr
    assert json.loads(planner(*TINY, "--json").stdout)["noise_scale_unknown_because"] is None


def test_the_measured_trace_is_the_simulators_format(tmp_path):
    path = tmp_path / "trace.json"
    done = planner(*TINY, "--pp", "2", "--schedule", "zb-h1", "--trace", str(path))
    assert done.returncode == 0, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    operations = [e for e in events if e["ph"] == "X"]
    assert len(operations) == 2 * 3 * 4  # ranks, F I W, micro-batches
    assert {e["cat"] for e in operations} == {"forward", "input gradient", "weight gradient"}
    ends = {(e["pid"], e["name"]): e["ts"] + e["dur"] for e in operations}
    starts = {(e["pid"], e["name"]): e["ts"] for e in operations}
    assert ends[0, "0F0"] <= starts[1, "1F0"]
    assert sum(e["ph"] == "s" for e in events) == 2 * 4


def test_one_step_has_no_time_left_and_slices_have_simulates_name():
    done = planner("train", "--scale", "tiny", "--steps", "1", "--schedule", "seq1f1b", "--sequence-slices", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].endswith(" tokens per step, 1 rank")


@pytest.mark.parametrize("schedule", ["2bw", "pipedream", "xpipe", "spectrain"])
def test_asynchronous_schedules_only_when_allowed(schedule, tmp_path):
    flags = ["--schedule", schedule, "--pp", "2", "--json"]
    refused = planner(*TINY, *flags)
    assert refused.returncode == 2
    assert "asynchronous: gradients are taken at older weights; allow it with --allow-async" in refused.stderr
    done = planner(*TINY, *flags, "--allow-async")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loss_last"] > 0
    done = planner(*TINY, *flags, "--allow-async", "--checkpoint", str(tmp_path))
    assert "has no checkpoints" in done.stderr


@needs_mpi
def test_under_mpirun_the_loss_is_serials():
    flags = ["--pp", "2", "--dp", "2", "--precision", "fp64", "--json"]
    serial = json.loads(planner(*TINY, *flags).stdout)
    done = mpirun(4, [*PROGRAM, *TINY, *flags])
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["engine"] == "mpi"
    assert record["loss_last"] == pytest.approx(serial["loss_last"], rel=1e-12)
    assert record["sent_bytes"] == serial["sent_bytes"]


@needs_mpi
@pytest.mark.slow
def test_the_recommended_layout_learns_the_default_text(tmp_path):
    asked = planner(
        "recommend", "gpt2", "--cluster", "workstation-cpu", "--gpus", "2", "--global-batch", "16", "--json"
    )
    path = tmp_path / "plan.json"
    path.write_text(asked.stdout)
    done = mpirun(2, [*PROGRAM, "train", str(path), "--steps", "180", "--json"], timeout_s=600)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    text = load_text(None)
    pairs = np.bincount(256 * text[:-1].astype(np.int64) + text[1:], minlength=256 * 256).reshape(256, 256)
    shares = pairs / pairs.sum(axis=1, keepdims=True).clip(1)
    after_one = -np.sum(pairs * np.log(shares, where=shares > 0, out=np.zeros_like(shares))) / pairs.sum()
    assert sum(losses[-20:]) / 20 < after_one  # nats per byte: it looks further back than one byte


@needs_mpi
def test_too_few_ranks_is_said():
    done = mpirun(2, [*PROGRAM, *TINY, "--pp", "4"])
    assert done.returncode != 0
    assert done.stderr.count("the plan needs 4 ranks; 2 were started") == 1


@needs_mpi
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks' processes in /proc")
def test_a_rank_that_dies_stops_the_others_and_is_named(tmp_path):
    flags = ["--pp", "2", "--steps", "100000", "--checkpoint", str(tmp_path), "--checkpoint-every", "5"]
    command = [
        str(MPIRUN),
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        sys.executable,
        *PROGRAM,
        *TINY,
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "latest.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = [int(c) for c in children if b"planner" in Path(f"/proc/{c}/cmdline").read_bytes()]
        victim = ranks[1]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert time.monotonic() - killed < 20
    assert process.returncode != 0
    assert "rank 1" in said
    assert json.loads((tmp_path / "latest.json").read_text())["step"] >= 5


def test_a_checkpoint_s_folder_is_looked_at_before_a_step(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        done = planner(*TINY, "--steps", "1", "--checkpoint", str(folder))
        assert done.returncode == 2
        assert done.stderr == f"planner: {file}/latest.json: can't be written: no folder {file}\n"
