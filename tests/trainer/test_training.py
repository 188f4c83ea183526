"""Whole runs: the loss falls, a run goes on to the bit, the noise scale is what its definition says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import ExecutionError, FileFormatError, InputError
from planner.base.state import digest
from planner.models import from_shape
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.loop import Measured, Training, train
from planner.trainer.noise import NoiseScale
from planner.trainer.scaled import scaled_model
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.text import Samples, load_text
from tests.hang import HANG_S

TEXT = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 40, dtype=np.uint8)
GPT = from_shape(family="gpt", layers=2, hidden=64, ffn=128, heads=4, kv_heads=4, vocab=256, seq_len=16)


def training(steps: int, zero: int = 0, checkpoint=None, **choices) -> Training:
    rows = SCHEDULES["1f1b"].order(Pipeline(p=2, m=2)).rows()
    model = scaled_model(GPT, "tiny", 1, 2, 1)
    task = Task(model=model, rows=rows, micro_batches=2, dp=2, zero=zero, dtype=np.float64, clip=1.0)
    samples = Samples(text=TEXT, seq_len=model.seq_len, micro_batch=2, micro_batches=2, dp=2)
    return Training(task=task, samples=samples, steps=steps, checkpoint=checkpoint, checkpoint_every=2, **choices)


def run(of: Training) -> Measured:
    return run_serial(np, of.task.num_ranks, lambda c: train(c, of, lambda progress: None))[0]


def test_the_loss_falls():
    loss = run(training(40, learning_rate=1e-2)).loss
    assert loss[0] > 5.0
    assert loss[-1] < 2.6


@pytest.mark.parametrize("zero", range(4))
def test_a_resumed_run_is_the_same_to_the_bit(zero, tmp_path):
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    run(training(4, zero, straight))
    run(training(2, zero, halves))
    second = run(training(4, zero, halves))
    assert second.first_step == 2
    names = sorted(p.name for p in straight.iterdir())
    assert names == sorted(p.name for p in halves.iterdir())
    assert len(names) == 5  # four ranks and latest.json
    for path in straight.glob("*.npz"):
        with np.load(path) as a, np.load(halves / path.name) as b:
            assert set(a) == set(b)
            assert all(np.array_equal(a[k], b[k]) for k in a)


def test_a_foreign_or_damaged_checkpoint_is_one_clear_line(tmp_path):
    run(training(2, 1, tmp_path))
    with pytest.raises(InputError, match=r"a checkpoint of a different run: zero is 1 there, 3 here"):
        run(training(4, 3, tmp_path))
    part = next(tmp_path.glob("*.rank-1.npz"))
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"rank-1.npz: damaged checkpoint"):
        run(training(4, 1, tmp_path))
    part.write_bytes(whole[:2000] + bytes(64) + whole[2064:])
    with pytest.raises(FileFormatError, match=r"rank-1.npz: damaged checkpoint"):
        run(training(4, 1, tmp_path))
    part.write_bytes(whole)
    latest = json.loads((tmp_path / "latest.json").read_text())
    (tmp_path / "latest.json").write_text(json.dumps(latest | {"step": 1}))
    with pytest.raises(FileFormatError, match="damaged: its sha256 is not of what it holds"):
        run(training(4, 1, tmp_path))
    latest.pop("sha256")
    for change in ({"step": 3.9}, {"step": -1}, {"loss_scale": [float("nan"), 0]}, {"loss_scale": 1}, {"fits": []}):
        changed = latest | change
        (tmp_path / "latest.json").write_text(json.dumps(changed | {"sha256": digest(changed).hex()}))
        with pytest.raises(FileFormatError, match="not a checkpoint's latest"):
            run(training(4, 1, tmp_path))
    for text in ("{", '{"step": 1e999}', "[" * 100_000):
        (tmp_path / "latest.json").write_text(text)
        with pytest.raises(FileFormatError, match=r"latest\.json"):
            run(training(4, 1, tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: {k: v for k, v in a.items() if k.endswith("/w")}, "is missing"),
        (lambda a: a | {"more/w": np.zeros(3)}, "'more/w' is not of this run"),
        (lambda a: {k: v.astype(np.float32) for k, v in a.items()}, "another shape or dtype"),
        (lambda a: {k: v[0] for k, v in a.items()}, "another shape or dtype"),
        (lambda a: {k: v * np.nan for k, v in a.items()}, "is not finite"),
        (lambda a: {k: np.concatenate([v] * 50) for k, v in a.items()}, "is larger than"),
        (lambda a: {k: np.array("text") for k in a}, "another shape or dtype"),
        (lambda a: a | {"layer0/w": a["layer0/w"] + 1e-9}, "other numbers than were written"),
    ],
)
def test_a_rewritten_checkpoint_is_refused(tmp_path, change, said):
    """Without the optimizer's state it once resumed in silence, and trained on differently."""
    run(training(2, 1, tmp_path))
    part = next(tmp_path.glob("*.rank-1.npz"))
    with np.load(part) as arrays:
        np.savez(part, **change(dict(arrays)))
    with pytest.raises(FileFormatError, match=f"damaged checkpoint: .*{said}"):
        run(training(4, 1, tmp_path))


def test_the_part_of_another_step_or_rank_is_refused(tmp_path):
    """Files of the right names, shapes and numbers, but not of one moment."""
    run(training(2, 1, tmp_path / "a"))
    run(training(1, 1, tmp_path / "b"))
    part = tmp_path / "a" / "step-00000002.rank-1.npz"
    for other in (tmp_path / "b" / "step-00000001.rank-1.npz", tmp_path / "a" / "step-00000002.rank-0.npz"):
        part.write_bytes(other.read_bytes())
        with pytest.raises(FileFormatError, match="of another step, rank or run"):
            run(training(4, 1, tmp_path / "a"))


def test_a_checkpoint_of_another_model_names_the_field(tmp_path):
    of = training(2, 0, tmp_path)
    run(of)
    other = replace(of, task=replace(of.task, model=replace(of.task.model, ffn=2 * of.task.model.ffn)))
    with pytest.raises(InputError, match=r"a different run: model\.ffn is \d+ there, \d+ here"):
        run(other)


def test_a_checkpoint_of_another_text_or_schedule_is_refused(tmp_path):
    of = training(2, 0, tmp_path)
    run(of)
    text = replace(of, steps=4, samples=replace(of.samples, text=TEXT[::-1]))
    with pytest.raises(InputError, match="a different run: text is another"):
        run(text)
    rows = SCHEDULES["gpipe"].order(Pipeline(p=2, m=2)).rows()
    with pytest.raises(InputError, match="a different run: schedule is another"):
        run(replace(of, steps=4, task=replace(of.task, rows=rows)))


def test_a_loss_that_is_no_number_stops_and_leaves_the_checkpoint(tmp_path):
    run(training(2, 0, tmp_path, optimizer="sgd"))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ExecutionError, match="try a lower learning rate"):
        run(training(40, 0, tmp_path, learning_rate=1e200, optimizer="sgd"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_end(tmp_path):
    command = [sys.executable, "-c", "from planner.cli import main; main()", "train", "--scale", "tiny", "--json"]
    command += ["--dp", "2", "--steps", "30", "--checkpoint-every", "1", "--precision", "fp64"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run([*command, "--checkpoint", str(straight)], check=True, capture_output=True, timeout=HANG_S)
    kills = 0
    for wait_s in (0.3, 0.05, 0.2, 0.1):
        process = subprocess.Popen(
            [*command, "--checkpoint", str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        reached = _step(killed)
        while process.poll() is None and _step(killed) <= reached:
            time.sleep(0.01)
        time.sleep(wait_s)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills
    subprocess.run([*command, "--checkpoint", str(killed)], check=True, capture_output=True, timeout=HANG_S)
    for path in straight.glob("*.npz"):
        with np.load(path) as a, np.load(killed / path.name) as b:
            assert all(np.array_equal(a[k], b[k]) for k in a)


def _step(folder) -> int:
    latest = folder / "latest.json"
    return json.loads(latest.read_text())["step"] if latest.exists() else 0


def test_noise_scale_of_a_known_distribution():
    rng = np.random.default_rng(0)
    true, sigma, n = np.full(50, 0.2), 1.5, 4000
    scale = NoiseScale()
    for _ in range(n):
        small, big = (true + rng.normal(0, sigma / np.sqrt(b), 50) for b in (4, 32))
        scale.add(4, float(np.linalg.norm(small)), 32, float(np.linalg.norm(big)))
    assert scale.sequences == pytest.approx(50 * sigma**2 / (true @ true), rel=0.05)
    assert scale.why_nothing == ""


def test_the_noise_scales_standard_error_is_its_spread_over_runs():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        scale = NoiseScale()
        for _ in range(50):
            small, big = (np.full(50, 0.2) + rng.normal(0, 1.5 / np.sqrt(b), 50) for b in (4, 32))
            scale.add(4, float(np.linalg.norm(small)), 32, float(np.linalg.norm(big)))
        found.append((scale.sequences, scale.standard_error))
    scales, errors = np.array(found).T
    assert np.median(errors) == pytest.approx(np.std(scales), rel=0.15)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "measured at 0 steps; its error needs two"),
        ([(2.0, 1.0)], "measured at 1 step; its error needs two"),
        ([(2.0, 0.5), (2.0, 1.1), (2.0, 0.6)], "the gradient is not seen above its noise in 3 measured steps"),
        ([(1.0, 1.01), (1.0, 1.02), (1.0, 1.01)], "below zero, so no noise is seen in 3 measured steps"),
        ([(2.0, 1.9), (2.0, 1.8), (2.0, 1.85)], ""),
    ],
)
def test_a_noise_scale_says_when_it_means_nothing(pairs, why):
    scale = NoiseScale()
    for small, big in pairs:
        scale.add(1, small, 4, big)
    assert scale.why_nothing == why


def test_noise_scale_is_measured_in_a_run():
    measured = run(training(12, noise_every=3))
    assert len(measured.noise.gradient) == 4
    assert np.isfinite(measured.noise.gradient + measured.noise.noise).all()


def test_text_and_samples(tmp_path, monkeypatch):
    assert len(load_text(None)) > 1_000_000
    samples = Samples(text=TEXT, seq_len=8, micro_batch=2, micro_batches=3, dp=2, seed=5)
    whole = replace(samples, dp=1, micro_batches=6).batch(np, 7, 0)
    parts = [samples.batch(np, 7, d) for d in range(2)]
    assert np.array_equal(np.concatenate([p.tokens for p in parts]), whole.tokens)
    assert np.array_equal(whole.tokens[..., 1:], whole.targets[..., :-1])
    text = tmp_path / "text"
    text.write_bytes(b"x" * 100)
    assert len(load_text(text)) == 100
    monkeypatch.setattr("planner.trainer.text.MOST_BYTES", 99)
    with pytest.raises(InputError, match="over 99 bytes"):
        load_text(text)
    with pytest.raises(InputError, match="text has 5 bytes"):
        replace(samples, text=TEXT[:5])
