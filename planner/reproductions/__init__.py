"""Papers by name: their claims are data (`papers/*.toml`), and evaluators of our models set ours beside them."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from planner.base.errors import UnknownNameError
from planner.reproductions.claims import Claim, Outcome, Paper, Reproduction, merged

FOLDER = Path(__file__).with_name("papers")
SYSTEMS = Path(__file__).with_name("systems.toml")
OWN = ("sentence", "figure", "unit", "where", "standing", "says", "by", "why")
"""A claim's own fields; what else its table says are arguments of its evaluator."""

SLOW = ("erdil-2024", "fujii-2024", "lamy-poirier-2021", "lamy-poirier-2022")
"""Papers that take longest, which begin first where several run side by side."""


@cache
def paper_names() -> tuple[str, ...]:
    """The papers' names."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def systems() -> dict[int, str]:
    """The systems that planner covers, by number."""
    return {int(key): name for key, name in tomllib.loads(SYSTEMS.read_text(encoding="utf-8")).items()}


def _table(name: str) -> dict[str, Any]:
    if name not in paper_names():
        raise UnknownNameError("paper", name, paper_names())
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def get_paper(name: str) -> Paper:
    """The paper and its claims, as its file says them.

    Raises UnknownNameError for an unknown paper, with the nearest.
    """
    data = _table(name)
    same = data.get("same", {})
    claims = tuple(claim for entry in data["claims"] for claim in _claims(merged(same, entry)))
    return Paper(name=name, title=data["title"], source=data["source"], systems=tuple(data["systems"]), claims=claims)


def preset_of(name: str) -> dict[str, Any]:
    """The paper's question to `planner fastest`, as its file says it.

    Raises UnknownNameError for an unknown paper, or one that asks no such question.
    """
    if name in paper_names() and "fastest" not in _table(name):
        raise UnknownNameError("paper with a shortest time", name, [p for p in paper_names() if "fastest" in _table(p)])
    found: dict[str, Any] = _table(name)["fastest"]
    return found


def _claims(entry: dict[str, Any]) -> list[Claim]:
    """The claims of one table: one, or one for each of its rows, whose columns its sentence may name in braces.

    labels: columns that the sentence alone uses.
    """
    columns, rows, labels = entry.pop("columns", []), entry.pop("rows", [[]]), entry.pop("labels", [])
    out = []
    for row in rows:
        one = merged(entry, dict(zip(columns, row, strict=True)))
        fields = {name: one[name] for name in OWN if name in one}
        fields["sentence"] = fields["sentence"].format(**one)
        arguments = {key: value for key, value in one.items() if key not in (*OWN, *labels)}
        out.append(Claim(**({"figure": None, "unit": ""} | fields), arguments=arguments))
    return out


def reproduce(name: str) -> Reproduction:
    """The paper's claims, each with ours. Raises UnknownNameError for an unknown paper."""
    from planner.reproductions.evaluate import evaluate

    paper = get_paper(name)
    return Reproduction(paper=paper, outcomes=tuple(evaluate(claim) for claim in paper.claims))


def reproduce_all() -> list[Reproduction]:
    """Every paper's claims, each with ours; papers side by side on the machine's cores, in the order of their names."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    longest_first = sorted(paper_names(), key=lambda name: name not in SLOW)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        done = dict(zip(longest_first, pool.map(reproduce, longest_first), strict=True))
    return [done[name] for name in paper_names()]
