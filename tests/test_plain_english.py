"""What a person reads keeps the rules of docs/style.md that can be counted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer

import planner
from planner.cli import app

MOST_WORDS = 35
SOURCES = sorted(Path(planner.__file__).parent.rglob("*.py"))
RATE = re.compile(
    r"(seconds|tokens|sequences|nats|GPUs|NICs|Gb/s|GB/s|chunks|[Mm]icro-batches|GiB|bytes|W|FLOP|layers|USD|ms|\bs) "
    r"an? (step|GPU|node|rank|second|layer|token|day|parameter|micro-batch|stage|replica|GPU-hour)\b"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, and the parts of one that a colon or a semicolon ends."""
    return [part for part in re.split(r"(?<=[.:;?])\s+|\n\n", text) if part]


def help_texts() -> list[tuple[str, str]]:
    """Every text of `--help`: of commands and of their options."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    texts = [(name, command.help or "") for name, command in commands.items()]
    return texts + [
        (f"{name} {option.opts[0]}", getattr(option, "help", None) or "")
        for name, command in commands.items()
        for option in command.params
    ]


def messages() -> list[tuple[str, str]]:
    """Every text that an exception is raised with, `{}` for its values."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found += [(f"{path.name}:{node.lineno}", text) for one in node.exc.args if (text := _text(one))]
    return found


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case _:
            return ""


@pytest.mark.parametrize("texts", [help_texts, messages])
def test_no_sentence_is_longer_than_a_reader_holds(texts):
    found = texts()
    assert len(found) > 100
    assert [(where, part) for where, text in found for part in sentences(text) if len(part.split()) > MOST_WORDS] == []


def test_a_rate_says_per():
    strings = [
        (f"{path.name}:{node.lineno}", node.value)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [(where, text) for where, text in [*help_texts(), *strings] if RATE.search(text)] == []
    assert RATE.search("15.4 s a step")
    assert RATE.search("8 NICs a node")


def test_every_option_and_command_says_what_it_is_and_every_command_has_an_example():
    assert [where for where, text in help_texts() if not text.strip()] == []
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name, one in commands.items() if f"planner {name}" not in (one.help or "")] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/concepts.md", "docs/accuracy.md"])
def test_no_sentence_of_a_first_page_is_longer_than_a_reader_holds(page):
    text = (Path(planner.__file__).parents[1] / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = re.split(r"\n\s*\n|\||\n(?=[#>*-]|\d+\. )", text)
    said = [" ".join(one.split()) for part in parts for one in re.split(r"(?<=[.:;?!])\s+", part)]
    assert [one for one in said if len(one.split()) > MOST_WORDS] == []
