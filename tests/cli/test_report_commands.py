"""Reports and pictures of `planner recommend`: written whole or not at all, refused before the search."""

import re
import subprocess
import sys

import pytest

from tests.cli.test_cli import ASK
from tests.commands import planner

FAST = [*ASK, "--pp", "4", "--tp", "4", "--no-curve"]


def test_html_pictures_and_the_answer(tmp_path):
    files = {kind: tmp_path / f"report.{kind}" for kind in ("svg", "png", "html")}
    done = planner(*FAST, *(part for kind, path in files.items() for part in (f"--{kind}", str(path))))
    assert done.returncode == 0, done.stderr
    assert "Run this: " in done.stdout
    layout = re.search(r"Run this: (.*)", done.stdout).group(1).strip()
    assert f">{layout}</p>" in files["html"].read_text()
    for name in ("Megatron-LM", "DeepSpeed", "torchtitan", "Accelerate"):
        assert f'"name":"{name}"' in files["html"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "where the time goes" in files["svg"].read_text().lower()
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [str(path) for path in files.values()]


def test_json_beside_a_report_is_json_and_nothing_else(tmp_path):
    import json

    done = planner(*FAST, "--json", "--html", str(tmp_path / "report.html"))
    assert json.loads(done.stdout)["best"]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_report_needs_no_pydantic(tmp_path):
    """Its core checks profiles, laws, assumptions and paths; the rest of it takes a tenth of a second to load."""
    few = ["recommend", "gpt2", "--cluster", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "8"]
    few += ["--zero", "1", "--micro-batch", "1", "--recompute", "none"]  # less to search for the curve
    ask = ["planner", *few, "--dp", "8", "--html", str(tmp_path / "report.html")]
    run = f"import sys; sys.argv = {ask}; from planner.cli import main\ntry: main()\nexcept SystemExit: pass"
    code = f"{run}\nprint('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (tmp_path / "report.html").exists(), done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_a_report_where_nothing_fits(tmp_path):
    few = ["recommend", "gpt3-175b", "--cluster", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "8", "--no-curve"]
    done = planner(*few, "--html", str(tmp_path / "report.html"), "--png", str(tmp_path / "report.png"))
    assert done.returncode == 1, done.stderr
    assert "Nothing fits in memory" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report.png").exists()
    assert "nothing fits, so " in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--html", "report.pdf"], "--html is report.pdf"),
        (["--png", "report"], "--png is report"),
        (["--svg", "no/such/report.svg"], "no/such"),
        (["--no-curve"], "--no-curve is given, for a report; allowed: with --html"),
        (["--tokens", "1e12"], "--tokens is 1e+12, for a report's curve; allowed: with --html"),
        (["--loss", "2", "--html", "report.html", "--no-curve"], "--loss is 2, for a report's curve"),
        (["--html", "report.html", "--tokens", "-1"], "tokens is -1"),
        (["--html", "report.html", "--tokens", "1e9", "--loss", "2"], "--tokens and --loss"),
    ],
)
def test_faults_are_one_line_and_leave_no_file(tmp_path, options, named):
    done = planner(*ASK, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
