"""Make docs/systems.md of docs/systems.toml and the papers' claims: python docs/systems_page.py [--check]"""

from __future__ import annotations

import csv
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from planner.reproductions import get_paper, paper_names, systems
from planner.reproductions.claims import AGREES, SHOWN
from planner.schedules import get_schedule
from planner.schedules.generated import Generated

DOCS = Path(__file__).parent
PAGE = DOCS / "systems.md"
DEVIATIONS = DOCS.parent / "tests/reproductions/deviations.csv"
COLUMNS = ("modelled", "simulated", "executed")
HEAD = """# Systems and papers, part by part

Made by `python docs/systems_page.py` of `docs/systems.toml` and the papers' claims.

A part is **modelled** where seconds, bytes or volumes have a formula, **simulated** where the exact timeline equals
that, **executed** where the mini-trainer runs it and its gradients are plain training's. A number is that of the test
below that proves it. An empty cell has no test: it isn't there. A dash has its reason.
The **headline** is what the paper's own figures say beside ours: `planner paper NAME` prints each; shown are figures of
ours that a paper has no figure for.

"""
COUNT = """{some} of {all} systems have a command and a claim that agrees, {read} of them one that was read, not
recalled. Without any: {none}.

"""


def data() -> dict[str, Any]:
    """The parts and the names of tests, as the file has them."""
    return tomllib.loads((DOCS / "systems.toml").read_text(encoding="utf-8"))


def test_of(said: str, names: dict[str, str]) -> str:
    """The test that a cell names, as pytest takes it; empty for a dash."""
    return "" if said.startswith("-:") else f"tests/{names.get(said, said)}"


def page() -> str:
    """The page's text."""
    own = data()
    tests: dict[str, int] = {}
    rows, reasons = [], []
    shown = 0
    for part in own["part"]:
        cells = []
        for column in COLUMNS:
            said = part.get(column, "")
            if said and not (test := test_of(said, own["tests"])):
                reasons.append(f"{part['system']}, {part['name']}, {column}: {said[2:].strip()}")
                cells.append("-")
            else:
                cells.append(str(tests.setdefault(test, len(tests) + 1)) if said else "")
        new = part["system"] != shown
        shown = part["system"]
        system = f"{shown}. {systems()[shown]}" if new else ""
        rows.append(f"| {system} | {_name(part)} | {' | '.join(cells)} | {_headline(shown) if new else ''} |")
    return "\n".join(
        [
            HEAD + _count() + "| system | part | modelled | simulated | executed | headline |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
            "\n## Dashes\n",
            *(f"- {reason}" for reason in reasons),
            "\n## Tests\n",
            *(f"{number}. `{test}`" for test, number in tests.items()),
            "",
        ]
    )


def _name(part: dict[str, Any]) -> str:
    found = [name for name in part.get("schedules", ()) if type(get_schedule(name)).in_flight is Generated.in_flight]
    own = f"the peak of {', '.join(found)} is read from the order itself" if found else ""
    notes = "; ".join(note for note in (part.get("note", ""), own) if note)
    return f"{part['name']} ({notes})" if notes else str(part["name"])


def _count() -> str:
    """How many systems have a claim that agrees today, and which have none."""
    with DEVIATIONS.open(encoding="utf-8") as file:
        agree = {(row["paper"], row["sentence"]) for row in csv.DictReader(file) if row["verdict"] == AGREES}
    papers = [get_paper(name) for name in paper_names()]
    known = [(p, c.standing) for p in papers for c in p.claims if (p.name, c.sentence) in agree]
    some = {n for p, _ in known for n in p.systems}
    read = {n for p, standing in known if standing == "read" for n in p.systems}
    none = ", ".join(f"{n} ({name})" for n, name in systems().items() if n not in some)
    return COUNT.format(some=len(some), all=len(systems()), read=len(read), none=none)


def _headline(system: int) -> str:
    """Each of the system's papers with what can be said of its claims today."""
    with DEVIATIONS.open(encoding="utf-8") as file:
        verdicts = [(row["paper"], row["verdict"]) for row in csv.DictReader(file)]
    said = []
    for name in paper_names():
        if system in get_paper(name).systems:
            count = Counter(verdict for paper, verdict in verdicts if paper == name)
            whole = sum(n for verdict, n in count.items() if verdict != SHOWN)
            agree = f"{count.pop('agrees', 0)} of {whole} claims agree"
            said.append(", ".join([f"`{name}`: {agree}", *(f"{n} {verdict}" for verdict, n in sorted(count.items()))]))
    return "; ".join(said)


def main() -> None:
    """Write the page, or with --check say whether it is that of today."""
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else f"{PAGE.name} is not of today")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
