"""The publications of the shipped measured runs, and their licences."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from planner.base.files import read_toml, shipped_folder


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A publication's entry in `measured_runs/sources.toml`.

    sets: how the names of its sources begin; at: its number or address; taken_from: the work that holds the numbers;
    licence: what that work says of itself. year: None where the work is a repository that changes.
    """

    sets: str
    authors: str
    title: str
    at: str
    taken_from: str
    licence: str
    year: int | None = None

    @property
    def citation(self) -> str:
        """Authors, year, title and address in one line; of many authors the first."""
        names = self.authors.split(", ")
        who = self.authors if len(names) == 1 else f"{names[0]} et al."
        return f"{who}{f' {self.year}' if self.year else ''}, {self.title}, {self.at}"


@cache
def publications() -> tuple[Publication, ...]:
    """The publications of the shipped runs."""
    table = read_toml(shipped_folder("measured_runs") / "sources.toml")
    return tuple(Publication(**fields) for fields in table["publication"])


def publication_of(source: str) -> Publication | None:
    """The publication of a source of shipped runs; None for one that isn't shipped."""
    return next((p for p in publications() if f"{source}-".startswith(f"{p.sets}-")), None)


def publications_of(sources: Iterable[str]) -> list[Publication]:
    """The publications of some sources, each once."""
    found = [publication_of(source) for source in sources]
    return list(dict.fromkeys(p for p in found if p is not None))
