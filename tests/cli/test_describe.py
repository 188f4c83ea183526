"""`planner --describe`: what a program needs to ask every question, equal to what the option parser takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer
from typer.testing import CliRunner

from planner.choices.table import CHOICES
from planner.cli import app
from planner.cli.mcp import QUESTIONS
from planner.reproductions import paper_names


def test_every_command_and_option_of_the_parser_is_described():
    told = json.loads(CliRunner().invoke(app, ["--describe"]).stdout)
    parsed = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(told["commands"]) == set(parsed)
    assert set(told["choices"]) == set(CHOICES)
    for name, command in parsed.items():
        one = told["commands"][name]
        assert f"planner {name}" in one["help"]
        taken = {o for p in command.params for o in p.opts if o.startswith("--") and not getattr(p, "hidden", False)}
        spelled = {
            part for o in one["options"] for n in o["names"] for part in n.split("/")[:1] if part.startswith("--")
        }
        assert spelled == taken - {"--help"}
        assert all(o["says"] and o["kind"] for o in [*one["arguments"], *one["options"]])


def test_what_must_be_given_and_what_may_be_given_twice():
    told = json.loads(CliRunner().invoke(app, ["--describe"]).stdout)["commands"]["recommend"]
    assert [(a["names"], a["needed"]) for a in told["arguments"]] == [
        (["model"], True), (["cluster_word"], False), (["gpus_word"], False),
    ]  # fmt: skip
    options = {o["names"][0]: o for o in told["options"]}
    assert (options["--tp"]["kind"], options["--tp"]["several"]) == ("whole number", True)
    assert (options["--top"]["least"], options["--top"]["most"], options["--top"]["default"]) == (1, 1000, 5)
    assert options["--any-framework"]["kind"] == "flag"


def test_docs_name_the_tools_of_mcp() -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    told = page.partition("Its tools are ")[2].partition(". ")[0]
    assert re.findall("`([a-z]+)`", told) == list(QUESTIONS)


def test_the_readme_counts_the_comparisons_with_papers() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"what papers claim, in {len(paper_names())} comparisons," in readme
