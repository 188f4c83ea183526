"""Every command and every piece of Python in README and docs runs, page by page, as a reader would run them.

A page's blocks run in order in one empty folder, so that one may read what another wrote; `benchmarks/` and
`measured_runs/` stand there as in a clone. Python blocks stand alone. A block that the tests don't run says so in its
first line, with the reason; one that says "takes" is slow.
"""

import os
import re
import shlex
import subprocess
import sys
import traceback
import warnings
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from tests.commands import planner, said
from tests.docs.snippets import SHELL, snippets

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = ("needs a GPU", "needs MPI", "needs a server", "needs PyTorch", "installs", "takes long", "runs the tests")
RUNNABLE = [p for p in PAGES if any(s.language in (*SHELL, "python") for s in snippets(p))]


def plain(line):
    """The words of a line that calls planner and asks nothing else of the shell; None of any other."""
    if not line.startswith("planner ") or line.endswith("\\") or set(line) & set("$`*?~"):
        return None
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return None if set(asked := list(words)) & {"|", ">", ">>", "<", "<<", "&", "&&", "||", ";"} else asked


def pieces(script):
    """A script as what a shell runs, and between it commands of planner, as lists of words."""
    text, end = "", None
    for line in script.splitlines():
        end = found[1] if (found := re.search(r"<<'(\w+)'", line)) else None if line == end else end
        if end is None and (words := plain(line)):
            yield from (text, words)
            text = ""
        else:
            text += f"{line}\n"
    yield text


def executed(text, folder, environment):
    """A block of Python that asks what `planner` offers, in this process under its own names; warnings are errors."""
    code = 0
    with said(folder, environment) as (out, err), warnings.catch_warnings(action="error"):
        try:
            exec(compile(text, "block", "exec"), {"__name__": "__main__"})
        except Exception:
            code = 1
            traceback.print_exc()
    return subprocess.CompletedProcess(["exec"], code, out.getvalue(), err.getvalue())


def run(snippet, folder, environment):
    """The exit codes of a block's pieces, and what they said. A command of planner runs here, others as processes.

    So does Python that imports nothing but the API; what declares classes of its own in inner rooms would leave them.
    """
    if snippet.language == "python" and not re.search(r"^(import|from) (?!planner import)", snippet.text, re.MULTILINE):
        yield executed(snippet.text, folder, environment)
        return
    if snippet.language == "python":
        some = [[sys.executable, "-W", "error", "-c", snippet.text]]
    else:
        some = [["bash", "-euo", "pipefail", "-c", x] if isinstance(x, str) else x for x in pieces(snippet.script) if x]
    for command in some:
        if command[0] == "planner":
            yield planner(*command[1:], cwd=folder, **environment)
        else:
            yield subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def a_readers_folder(folder):
    """An empty folder with what lies in a clone beside it, and a PATH with `planner` and `python`."""
    for name in ("benchmarks", "measured_runs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    programs = folder.parent / f"{folder.name}-programs"
    programs.mkdir()
    for name, start in (("planner", "-m planner"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        (programs / name).chmod(0o755)
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {"PATH": paths, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "COLUMNS": "100"}


def marked(page):
    name = str(page.relative_to(ROOT))
    slow = any(s.slow for s in snippets(page))
    return pytest.param(page, id=name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("page", [marked(p) for p in RUNNABLE])
def test_a_pages_blocks_run(page, tmp_path):
    environment = a_readers_folder(tmp_path)
    for snippet in snippets(page):
        if snippet.language in (*SHELL, "python") and snippet.not_run is None:
            for done in run(snippet, tmp_path, environment):
                assert done.returncode == 0, f"{page.name}, line {snippet.line}: {done.stderr[-2000:]}"
                assert "Traceback" not in done.stderr, f"{page.name}, line {snippet.line}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_command_hides_in_a_block_without_a_language(page):
    """A command stands in a block that is run; blocks without a language are output."""
    for snippet in snippets(page):
        assert snippet.language in (*SHELL, "python", "", "text", "toml", "yaml", "json", "csv", "mermaid"), snippet
        if snippet.language in ("", "text"):
            lines = [x.strip() for x in snippet.text.splitlines()]
            hidden = [x for x in lines if re.match(r"(\$ |planner [a-z]+|pip |python |mpirun |git clone)", x)]
            assert not hidden, f"{page.name}, line {snippet.line}: {hidden[0]}"


def test_a_block_that_is_not_run_gives_one_of_few_reasons():
    seen = 0
    for page in PAGES:
        for snippet in snippets(page):
            if snippet.not_run is not None:
                assert snippet.not_run.startswith(REASONS), f"{page.name}, line {snippet.line}: {snippet.not_run}"
                seen += 1
    assert seen


@cache
def help_of(command):
    """What a command says with --help, None where there is no such command."""
    said = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [command, "--help"], prog_name="planner")
    return said.stdout if said.exit_code == 0 else None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_options_named_in_a_sentence_exist(page):
    """`planner COMMAND --option` in running text: the command and its options are there."""
    for text in re.findall(r"`(planner [a-z][^`\n]*)`", page.read_text(encoding="utf-8")):
        words = shlex.split(text)[1:]
        said = help_of(words[0])
        assert said is not None, f"{page.name}: `{text}` names no command"
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", text):
            assert re.search(rf"{option}(?![a-z-])", said), f"{page.name}: `{text}` has no {option}"
