"""Thousands of spoilt files and odd options, a few hundred of them by default: every one is met with sense.

`python benchmarks/fuzz.py --cases 10000` runs as many as one likes and counts how they ended.
"""

import random
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

from planner.cli import COMMANDS
from tests.fuzz.cases import Case, byte_case, judge, option_case, sound_cases, structural_cases
from tests.fuzz.harness import Outcome, TimedOut, _time_limit, faults, run
from tests.fuzz.options import SOUND, option_cases, several_options

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def check(case: Case) -> None:
    outcome, found = judge(case)
    assert not found, (case.command, *found)
    assert outcome.code is not None


@pytest.mark.parametrize("case", sound_cases(), ids=lambda case: case.command.replace(" ", "_")[:60])
def test_the_unspoilt_files_are_taken(case: Case) -> None:
    """Otherwise every mutation would be refused for the same reason."""
    outcome, found = judge(case)
    assert (outcome.code, found) == (0, []), outcome.stderr


FOUND = (
    ("sites", *SOUND["sites"].split(), "--sites", "9" * 5000),
    ("check", *SOUND["check"].split(), "--against", "nul\0byte"),
    ("calibrate", "--probe", "@probe.json", "--cluster", "dgx-h100", "--profile", "\x1b[31m"),
    ("calibrate", "--probe", "@probe.json", "--cluster", "dgx-h100", "--profile", "@"),  # the fuzzer's own false alarm
)
"""What runs of the benchmark found, mended since."""


@pytest.mark.parametrize("argv", FOUND, ids=lambda argv: argv[0])
def test_what_was_found(argv: tuple[str, ...]) -> None:
    check(option_case(argv))


def test_a_text_that_is_no_path_is_told_in_our_own_words() -> None:
    said = run(["pareto", "nul\0byte"]).stderr
    assert "nul\\x00byte" in said
    assert "Value error" not in said


def test_the_clock_alone_ends_no_case_that_computes() -> None:
    """A wait is ended; what computes between two looks goes on until its limit of the processor."""

    def computes(_seconds: float = 0.0) -> None:
        begun = time.process_time()
        while time.process_time() - begun < 0.3:
            pass

    with _time_limit(1e6), mock.patch("tests.fuzz.harness.WAITING_S", 0.0):
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        computes()
    with pytest.raises(TimedOut), _time_limit(0.02), mock.patch("tests.fuzz.harness.WAITING_S", 10.0):
        time.sleep(60.0)
    with pytest.raises(TimedOut), _time_limit(0.1):
        computes()


def test_a_nan_in_an_answer_is_found_where_no_sentence_of_the_file_has_it(tmp_path: Path) -> None:
    said = Outcome(argv=("clusters",), code=0, stdout="bandwidth  300  a link of generation nan per GPU\n", stderr="")
    assert faults(said, tmp_path, {}) == ["the answer has a nan or inf"]
    (tmp_path / "cluster.toml").write_text(text := 'source = "a link of generation nan per GPU"\nbandwidth = nan')
    assert not faults(said, tmp_path, {"cluster.toml": text.encode()})
    as_number = Outcome(
        argv=("clusters",), code=0, stdout="bandwidth  nan  a link of generation nan per GPU\n", stderr=""
    )
    assert faults(as_number, tmp_path, {"cluster.toml": text.encode()}) == ["the answer has a nan or inf"]


def test_a_probe_that_is_killed_keeps_its_file_and_no_other(tmp_path: Path) -> None:
    """What it measured is kept by design."""
    (tmp_path / "probe.json").touch()
    (tmp_path / "other.json").touch()
    ended = Outcome(argv=("probe", "--run", "2"), code=2, stdout="", stderr="planner: it was killed\n")
    assert faults(ended, tmp_path, {}) == ["other.json was left behind"]


def test_every_command_is_drawn() -> None:
    drawn = {argv[0] for argv in option_cases()}
    assert drawn == set(COMMANDS)
    assert set(SOUND) == set(COMMANDS)


@settings(max_examples=120, derandomize=True, suppress_health_check=QUIET)
@given(case=structural_cases(slow=False))
def test_structural_mutations(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("seed", range(5))
def test_random_edits_of_bytes(seed: int) -> None:
    for i in range(20):
        check(byte_case(1_000 * seed + i, slow=False))


def test_options_with_odd_values() -> None:
    """A fixed sample of the whole matrix, quick commands only."""
    quick = [argv for argv in option_cases() if argv[0] not in ("train", "calibrate", "fastest", "explain")]
    for argv in random.Random(7).sample(quick, 100):
        check(option_case(argv))


def test_several_options_at_once() -> None:
    for seed in range(100):
        check(option_case(several_options(seed)))


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, suppress_health_check=QUIET)
@given(case=structural_cases())
def test_more_structural_mutations(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_more_options_and_bytes(seed: int) -> None:
    for argv in random.Random(seed).sample(option_cases(), 30):
        check(option_case(argv))
    for i in range(30):
        check(byte_case(1_000 * seed + i))
