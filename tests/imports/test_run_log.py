"""Logs of training runs: each framework's own text, hostile files, and the way from a log to an anchored answer.

The samples are written after what the frameworks' formatters print (`log_formats.toml` says where).
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.base.errors import FileFormatError, InputError
from planner.exporters.target import family
from planner.hardware import load_framework, profile_names
from planner.imports.run_log import log_formats, read_log
from planner.validation import read_runs
from tests.commands import planner

RED, END = "\x1b[31m", "\x1b[39m"


def torchtitan(i: int, ms: float) -> str:
    return (
        f"[rank0]:[titan] 2025-07-01 10:00:{i % 60:02d},000 - root - INFO - {RED}step: {i:2}  \x1b[32mloss:  8.1000  "
        f"\x1b[33mgrad_norm:  1.2000  \x1b[36mmemory: 40.25GiB(50.90%)  \x1b[34mtps: {round(8.192e6 / ms):,}  "
        f"\x1b[36mtflops: 412.31  \x1b[35mmfu: 41.70%{END}\n"
    )


def nanotron(i: int, ms: float) -> str:
    return (
        f"07/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {i} / 100 | consumed_tokens: {i * 8}K | "
        f"elapsed_time_per_iteration_ms: {ms / 1000:.4g}K | tokens_per_sec: 262K | tokens_per_sec_per_gpu: 32.8K | "
        "global_batch_size: 256 | lm_loss: 9.2 | lr: 0.0003 | model_tflops_per_gpu: 200 | "
        "hardware_tflops_per_gpu: 210 | grad_norm: 1.1\n"
        "07/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]:  Memory usage: 10.00MiB. Peak allocated 20.0MiB. "
        "Peak reserved: 41216.00MiB\n"
    )


def megatron(i: int, ms: float) -> str:
    memory = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
    return (f"{memory}max reserved: 41216.0\n" if i == 2 else "") + (
        f" [2025-07-01 10:00:00] iteration {i:8d}/     100 | consumed samples: {i * 256:12d} | elapsed time per "
        f"iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 420.5 | learning rate: 3.000000E-04 | global "
        "batch size:   256 | lm loss: 9.2E+00 | grad norm: 1.2 | number of skipped iterations:   0 |\n"
    )


def nemo(i: int, ms: float) -> str:
    return (
        f"Training epoch 0, iteration {i}/99 | lr: 3e-04 | global_batch_size: 256 | global_step: {i} | "
        f"reduced_train_loss: 9.2 | train_step_timing in s: {ms / 1000:.4g} | consumed_samples: {i * 256}\n"
    )


def nemo_bar(i: int, ms: float) -> str:
    return (
        f"\rEpoch 0: : {i}%|##  | {i}/100 [10:48<00:00, reduced_train_loss=0.0172, global_step={i}.00, "
        f"consumed_samples=25600.0, train_step_timing in s={ms / 1000:.4g}]"
    )


def deepspeed(i: int, ms: float) -> str:
    return (
        f"[2025-07-01 10:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step={i * 4}/global_step={i}, "
        f"RunningAvgSamplesPerSec=25.7, CurrSamplesPerSec={256e3 / ms}, MemAllocated=4.32GB, MaxMemAllocated=40.25GB\n"
    )


def trainer(i: int, ms: float) -> str:
    return f"\r {i}%|##        | {i}/100 [00:30<03:00,  {ms / 1000:.2f}s/it]{{'loss': 2.5, 'epoch': 0.1}}"


def deepspeed_pipeline(i: int, ms: float) -> str:
    return f"steps: {i} loss: 6.1234 iter time (s): {ms / 1000:.3f} samples/sec: 72.9\n"


def megatron_deepspeed(i: int, ms: float) -> str:
    return f" iteration {i:8}/  100 | consumed samples: 256 | elapsed time per iteration (s): {ms / 1000:.2f} | lr: 1\n"


SAMPLES = [
    ("DeepSpeed", deepspeed_pipeline, None), ("Megatron-LM or Megatron-Bridge", megatron_deepspeed, None),
    ("torchtitan", torchtitan, 40.25),
    ("nanotron", nanotron, 40.25), ("Megatron-LM or Megatron-Bridge", megatron, 40.25),
    ("NeMo", nemo, None), ("NeMo", nemo_bar, None), ("DeepSpeed", deepspeed, 40.25),
    ("Hugging Face Trainer", trainer, None),
]  # fmt: skip
WARM = [9000.0, 5000.0, *[2000.0 + 10 * (i % 3) for i in range(18)]]


def written(path: Path, line, times=WARM) -> Path:
    path.write_text("Loading data\n" + "".join(line(i, ms) for i, ms in enumerate(times, 1)) + "\ndone\n")
    return path


@pytest.mark.parametrize(("name", "line", "memory_gib"), SAMPLES)
def test_each_framework_s_log_gives_the_steady_step(tmp_path: Path, name: str, line, memory_gib: float | None) -> None:
    log = read_log(written(tmp_path / "run.log", line))
    assert log.framework == name
    # The sample of torchtitan has 8,192 tokens a GPU and step; that of DeepSpeed 256 sequences a step.
    assert log.step_time_s(gpus=8, batch=256, seq_len=256) == pytest.approx(2.01, rel=0.003)
    assert (log.warm_up, len(log.values)) == (2, 18)
    assert log.spread < 0.01
    assert log.memory_bytes == (None if memory_gib is None else memory_gib * 2**30)


def test_every_format_has_a_sample_and_a_source() -> None:
    assert set(log_formats()) == {name for name, _, _ in SAMPLES}
    assert all(f.source for f in log_formats().values())


def test_ranks_that_write_into_one_line_are_told_apart_and_the_slowest_counts(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    pairs = [torchtitan(i, 2000.0).rstrip("\n") + torchtitan(i, 2500.0) for i in range(1, 11)]
    path.write_text("".join(pairs))
    log = read_log(path)
    assert len(log.values) == 10
    assert log.median == pytest.approx(8.192e6 / 2500, abs=1)


def test_a_number_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "run.log", megatron, [2000.0] * 5)
    text = megatron(6, 2000.0)
    path.write_text(path.read_text() + text[: text.index("2000.0") + 1])
    assert read_log(path).values.tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "none of its 0 lines"),
        (b"hello\n" * 10, "none of its 10 lines is an iteration's; allowed: a log of torchtitan, nanotron, NeMo"),
        (b"\x00" * 1000, "has binary data"),
        (b"\xff\xfe\xfa" * 100 + b"\n", "none of its 1 lines"),
        (b"9" * 300_000, "none of its 5 lines"),
        ((b"1/" * 100_000) + b" [", "none of its"),
        (b"{'loss': 2.5, 'epoch': 0.1}\n" * 9, "its progress bar, which alone says what each step takes; allowed: "),
        (b"\n{'train_runtime': 512.3, 'train_steps_per_second': 0.195}\n", "a log with the bar (disable_tqdm=False)"),
        (megatron(1, 2000.0).encode(), "a log of Megatron-LM or Megatron-Bridge with 1 iteration with a time"),
        (megatron(1, 0.0).encode() * 9, "none of its 9 lines"),
        (b"step:  1  loss:  1.0  tps: 1e999  tflops: 1e999  \n" * 9, "none of its 9 lines"),
    ],
)  # fmt: skip
def test_a_foreign_or_damaged_file_gets_one_line(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with pytest.raises((FileFormatError, InputError)) as caught:
        read_log(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak of memory is read in /proc")
def test_memory_is_bounded_whatever_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    with path.open("w") as stream:
        for i in range(110_000):
            stream.write(nemo(i, 2000.0))
        stream.write("x" * 20_000_000)
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from planner.imports.run_log import read_log\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "read_log(Path(sys.argv[1]))\n"
        "before = peak()\n"
        "print(len(read_log(Path(sys.argv[2])).values), peak() - before)"
    )
    short = written(tmp_path / "short.log", nemo)
    done = subprocess.run([sys.executable, "-c", program, short, path], capture_output=True, text=True, check=True)
    values, more_kib = map(int, done.stdout.split())
    assert values == 100_000
    assert more_kib * 1024 < 40e6


def test_from_a_plan_and_its_log_to_a_row_that_anchors_the_next_answer(tmp_path: Path) -> None:
    plan, row, log = tmp_path / "plan.json", tmp_path / "mine.csv", tmp_path / "run.log"
    question = ["llama3-8b", "--cluster", "dgx-h100"]
    layout = ["--dp", "64", "--recompute", "full", "--global-batch", "256"]
    one = json.loads(planner("estimate", *question, *layout, "--save", str(plan), "--json").stdout)
    step = one["step_time_s"]
    written(log, megatron, [3e3 * step, *[1.08e3 * step] * 9])
    told = planner("observe", str(log), "--plan", str(plan), "--row", str(row))
    assert told.returncode == 0, told.stderr
    assert "+8.0%" in told.stdout
    assert "Look at first" in told.stdout
    assert f"{row}: run run is added" in told.stderr
    assert "outlier" not in told.stderr
    again = planner("observe", str(log), "--plan", str(plan), "--row", str(row))
    assert again.returncode == 0
    assert "run run is there already, and isn't added twice" in again.stderr
    runs = read_runs(row)
    assert len(runs) == 1
    written(tmp_path / "other.log", megatron, [1.09e3 * step] * 9)
    written(tmp_path / "same.log", megatron, [1.08e3 * step] * 9)
    logs = [str(tmp_path / name) for name in ("other.log", "same.log")]
    assert "run same is there" in planner("observe", *logs, "--plan", str(plan), "--row", str(row)).stderr
    assert [run["run"] for run in read_runs(row)] == ["run", "other"]
    row.write_text(row.read_text().replace(",true,", ",True,").replace(",256,", ",256.0,").removesuffix("\n"))
    assert "run run is there" in planner("observe", str(log), "--plan", str(plan), "--row", str(row)).stderr
    row.unlink()
    assert planner("observe", str(log), "--plan", str(plan), "--row", str(row)).returncode == 0
    assert runs[0]["step_time_s"] == pytest.approx(1.08 * step, rel=1e-4)
    written(tmp_path / "slow.log", megatron, [2e3 * step] * 9)
    far = planner("observe", str(tmp_path / "slow.log"), "--plan", str(plan), "--row", str(tmp_path / "far.csv"))
    assert "far.csv: run slow is added; it may be an outlier for --anchor" in far.stderr
    scored = json.loads(planner("validate", str(row), "--json").stdout)
    assert scored["overall"]["bias"] == pytest.approx(1 / 1.08 - 1, abs=0.005)  # the row is the plan's own layout
    next_one = json.loads(planner("estimate", *question, *layout, "--anchor", str(row), "--json").stdout)
    assert 1.03 * step < next_one["step_time_s"] < 1.08 * step


def test_a_log_s_memory_is_held_against_what_the_log_counts(tmp_path: Path) -> None:
    """Megatron-LM's report_memory is PyTorch's allocator's: context and communicators, 2.5 GiB, lie outside."""
    plan, log = tmp_path / "plan.json", tmp_path / "run.log"
    question = ["llama3-8b", "--cluster", "dgx-h100", "--dp", "64", "--recompute", "full", "--global-batch", "256"]
    one = json.loads(planner("estimate", *question, "--save", str(plan), "--json").stdout)
    written(log, megatron, [1e3 * one["step_time_s"]] * 9)
    told = json.loads(planner("observe", str(log), "--plan", str(plan), "--json").stdout)["logs"][0]
    assert told["predicted_memory_gib"] == pytest.approx(one["memory_gib"] - 2.5, abs=1e-6)


@pytest.mark.parametrize(
    ("ms", "tflops", "says"),
    [
        (100, 420.5, "step_time_s is 0.1, which means 16,866"),
        (4000, 42.5, "the log says 42 TFLOP/s per GPU, its steps of 4 s mean 187 to 936,"),
    ],
)
def test_a_log_that_the_run_can_t_have_written_gives_no_row(
    tmp_path: Path, ms: float, tflops: float, says: str
) -> None:
    def line(i: int, ms: float) -> str:
        return megatron(i, ms).replace("420.5", str(tflops))

    log, row = written(tmp_path / "run.log", line, [ms] * 9), tmp_path / "mine.csv"
    refused = planner("observe", str(log), "--plan", str(saved_plan(tmp_path)), "--row", str(row))
    assert refused.returncode == 2
    assert says in refused.stderr
    assert not row.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--row", "mine.csv"], "--plan is missing"),
        (["--megatron-args", "--num-layers 2"], "--cluster is missing"),
        (["--plan", "a.json", "--megatron-args", "x"], "allowed: one of them"),
        (
            ["--plan", "a.json", "--framework", "torchtitan"],
            "--framework is torchtitan beside --plan; allowed with",
        ),
        (
            ["--plan", "a.json", "--gpus", "8"],
            "--gpus is 8 beside --plan; allowed with --megatron-args, --deep",
        ),
        (["--plan", "a.json", "--vocab", "9"], "--vocab is 9 beside --plan; allowed with --megatron-args"),
        (["--deepspeed", "x.json", "--torchtitan", "x.toml"], "--deepspeed and --torchtitan are both given"),
        (
            ["--torchtitan", "x.toml", "--recompute", "full"],
            "--recompute is full beside --torchtitan; allowed",
        ),
        (
            ["--megatron-args", "x", "--model", "gpt2"],
            "--model is gpt2 beside --megatron-args; allowed with",
        ),
        (["--deepspeed", "x.json", "--model", "gpt2"], "--cluster is missing; --deepspeed doesn't say it"),
        (["--deepspeed", "x.json", "--cluster", "selene"], "--model is missing; --deepspeed doesn't say it"),
    ],
)
def test_what_ran_must_be_known(tmp_path: Path, options: list[str], says: str) -> None:
    refused = planner("observe", str(written(tmp_path / "run.log", megatron)), *options)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_a_log_of_another_batch_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    planner(
        "estimate", "llama3-8b", "--cluster", "dgx-h100", "--dp", "64", "--global-batch", "512", "--save", str(plan)
    )
    refused = planner("observe", str(written(tmp_path / "run.log", megatron)), "--plan", str(plan))
    assert refused.returncode == 2
    assert "global batch size is 256, the run's is 512" in refused.stderr


HEAD = (
    "using world size: 64, data-parallel size: 64, context-parallel size: 1, tensor-model-parallel size: 1, "
    "pipeline-model-parallel size: 1\n  seq_length ...................................... 8192\n"
    "  encoder_seq_length .............................. 4096\n"
)


def saved_plan(folder: Path, *more: str) -> Path:
    """A plan of 64 GPUs, all of them data-parallel, batch 256."""
    plan = folder / "plan.json"
    layout = ["--dp", "64", "--recompute", "full", "--global-batch", "256", "--save", str(plan), *more]
    assert planner("estimate", "llama3-8b", "--cluster", "dgx-h100", *layout).returncode == 0
    return plan


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("", "", ""),
        ("world size: 64", "world size: 128", "gpus 128, the run's is 64"),
        ("data-parallel size: 64", "data-parallel size: 32", "dp 32, the run's is 64"),
        ("tensor-model-parallel size: 1", "tensor-model-parallel size: 2", "tp 2, the run's is 1"),
        ("HEAD", "  pipeline_model_parallel_size .................... 4\n", "pp 4, the run's is 1"),
        ("... 8192", "... 4096", "seq_len 4096, the run's is 8192"),
        ("HEAD", "  num_layers ...................................... 16\n", "num_layers 16, the run's is 32"),
        ("HEAD", "  hidden_size ..................................... 2048\n", "hidden 2048, the run's is 4096"),
        ("HEAD", "  micro_batch_size ................................ 4\n", "micro_batch 4, the run's is 1"),
        ("HEAD", "  recompute_granularity ........................... None\n", "recompute None, the run's is full"),
        ("HEAD", "  recompute_granularity ........................... full\n", ""),
        (
            "HEAD",
            "  use_distributed_optimizer ....................... False\n",
            "shards_optimizer False, the run's is True",
        ),
    ],
)
def test_what_a_log_of_megatron_states_must_be_the_run_s(tmp_path: Path, was: str, now: str, says: str) -> None:
    path = written(tmp_path / "run.log", megatron)
    path.write_text((now if was == "HEAD" else HEAD.replace(was, now)) + path.read_text())
    told = planner("observe", str(path), "--plan", str(saved_plan(tmp_path)))
    assert told.returncode == (2 if says else 0), told.stderr
    assert says in told.stderr
    assert told.stderr.count("\n") == bool(says)


def test_a_packed_log_is_read_and_a_cut_one_refused_in_one_line(tmp_path: Path) -> None:
    plain = written(tmp_path / "run.log", megatron)
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_log(packed).median == read_log(plain).median
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(FileFormatError, match=r"run.log.gz: can't be read: gzip packed it, and it is cut off"):
        read_log(packed)


def test_torchtitan_s_older_word_for_tokens_per_second_is_read(tmp_path: Path) -> None:
    old = read_log(written(tmp_path / "run.log", lambda i, ms: torchtitan(i, ms).replace("tps: ", "wps: ")))
    assert (old.kind, old.median) == ("tokens_per_s_per_gpu", read_log(written(tmp_path / "n.log", torchtitan)).median)


def test_the_first_of_three_steps_can_be_warm_up(tmp_path: Path) -> None:
    log = read_log(written(tmp_path / "run.log", megatron, [9000.0, 2000.0, 2010.0]))
    assert (log.warm_up, list(log.values)) == (1, pytest.approx([2.0, 2.01]))


def test_off_is_the_prediction_over_the_measurement_as_in_validate(tmp_path: Path) -> None:
    log, plan = written(tmp_path / "run.log", megatron), str(saved_plan(tmp_path))
    told = json.loads(planner("observe", str(log), "--plan", plan, "--json").stdout)["logs"][0]
    rows = {
        line.split()[0]: line.split()[-1]
        for line in planner("observe", str(log), "--plan", plan).stdout.splitlines()
        if line
    }
    assert told["slower"] == pytest.approx(told["measured_step_time_s"] / told["predicted_step_time_s"] - 1)
    assert told["memory_more"] == pytest.approx(told["memory_gib"] / told["predicted_memory_gib"] - 1)
    assert rows["step"] == f"{told['predicted_step_time_s'] / told['measured_step_time_s'] - 1:+.1%}"
    assert rows["tokens/s/GPU"] == f"{told['measured_step_time_s'] / told['predicted_step_time_s'] - 1:+.1%}"
    assert rows["peak"] == f"{told['predicted_memory_gib'] / told['memory_gib'] - 1:+.1%}"


def test_a_framework_s_own_file_says_what_ran(tmp_path: Path) -> None:
    """As `estimate` reads it; of DeepSpeed the model's own code says what it recomputes."""
    ours = {"zero_optimization": {"stage": 2, "overlap_comm": False}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 1} | ours))
    degrees = "[parallelism]\ntensor_parallel_degree = 2\n"
    (tmp_path / "tt.toml").write_text(f"[training]\nlocal_batch_size = 1\nseq_len = 8192\n{degrees}")
    for line, kind, file, more in (
        (deepspeed, "--deepspeed", "ds.json", ["--recompute", "full"]), (torchtitan, "--torchtitan", "tt.toml", []),
    ):  # fmt: skip
        ran = [kind, str(tmp_path / file), "--cluster", "dgx-h100", "--gpus", "64", *more]
        log = str(written(tmp_path / "run.log", line))
        told = json.loads(planner("observe", log, "--model", "llama3-8b", *ran, "--json").stdout)["logs"][0]
        estimated = json.loads(planner("estimate", "llama3-8b", *ran, "--json").stdout)
        assert told["predicted_step_time_s"] == estimated["step_time_s"]


def test_warm_up_after_a_second_header_does_not_count(tmp_path: Path) -> None:
    plain = read_log(written(tmp_path / "run.log", megatron))
    path = tmp_path / "run.log"
    path.write_text(HEAD + path.read_text() + HEAD + path.read_text())
    twice = read_log(path)
    assert (twice.warm_up, len(twice.values)) == (2 * plain.warm_up, 2 * len(plain.values))
    assert twice.slow_share == 0.0


@pytest.mark.parametrize(
    ("more", "lost"),
    [([], ""), (["--grad-dtype", "bf16", "--offload-optimizer"], "offload-optimizer on, grad-dtype bf16")],
)
def test_what_no_column_of_a_row_has_is_said(tmp_path: Path, more: list[str], lost: str) -> None:
    """The row is read without it: an offloaded step would be taken for a slow machine."""
    log, plan = written(tmp_path / "run.log", megatron, [4000.0] * 12), saved_plan(tmp_path, *more)
    told = planner("observe", str(log), "--plan", str(plan), "--row", str(tmp_path / "mine.csv"))
    assert told.returncode == 0, told.stderr
    assert (f"no column has {lost}" in told.stderr) is bool(lost)
    assert ("no column has" in told.stderr) is bool(lost)


def test_a_log_with_two_paces_gives_no_row(tmp_path: Path) -> None:
    log, row = written(tmp_path / "run.log", megatron, [4000.0] * 12 + [5000.0] * 12), tmp_path / "mine.csv"
    refused = planner("observe", str(log), "--plan", str(saved_plan(tmp_path)), "--row", str(row))
    assert refused.returncode == 2
    assert "two paces" in refused.stderr
    assert not row.exists()


def test_a_log_of_another_framework_family_is_refused(tmp_path: Path) -> None:
    refused = planner("observe", str(written(tmp_path / "t.log", torchtitan)), "--plan", str(saved_plan(tmp_path)))
    assert refused.returncode == 2
    assert "t.log: a log of torchtitan, the run's framework is megatron-core; allowed: a log of that" in refused.stderr


def test_every_format_is_of_families_that_profiles_have() -> None:
    have = {family(load_framework(name)) for name in profile_names("frameworks")}
    assert {name for log_format in log_formats().values() for name in log_format.families} <= have


def test_iterations_of_another_batch_are_left_out(tmp_path: Path) -> None:
    def ramp(i: int, ms: float) -> str:
        return megatron(i, ms) if i > 12 else megatron(i, ms / 4).replace("size:   256", "size:    64")

    path = written(tmp_path / "run.log", ramp)
    told = planner("observe", str(path), "--plan", str(saved_plan(tmp_path)))
    assert "12 of another global batch" in told.stdout
    log = read_log(path, {"batch": 256})
    assert log.median == pytest.approx(2.01)
    assert (len(log.values), log.batch, log.other_batch) == (8, 256, 12)
    assert (read_log(path, {"batch": 64}).batch, read_log(path).other_batch) == (64, 0)


@pytest.mark.parametrize("said", ["Loading checkpoint shards: ", "Map: ", "Epoch 0: "])
def test_a_bar_with_a_description_is_not_the_trainer_s(tmp_path: Path, said: str) -> None:
    path = written(tmp_path / "run.log", lambda i, ms: "\r" + said + trainer(i, ms)[1:])
    with pytest.raises(FileFormatError, match="none of its"):
        read_log(path)
