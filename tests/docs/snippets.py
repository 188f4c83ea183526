"""The fenced code blocks of a page, and what a first comment says of running them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

SHELL = ("sh", "bash", "console")
# The marks stand in the block, where a reader sees them too.
NOT_RUN = re.compile(r"^# not run by the tests: (.+)$")
SLOW = re.compile(r"^# takes (.+)$")


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, its text, its line in the page, and its mark, if any."""

    language: str
    text: str
    line: int

    def _mark(self, pattern: re.Pattern[str]) -> str | None:
        first = self.text.splitlines()[0] if self.text.strip() else ""
        found = pattern.match(first.removeprefix("$ "))
        return found.group(1) if found else None

    @property
    def not_run(self) -> str | None:
        """Why the tests don't run it, None where they do."""
        return self._mark(NOT_RUN)

    @property
    def slow(self) -> bool:
        """Whether it says that it takes long."""
        return self._mark(SLOW) is not None

    @property
    def script(self) -> str:
        """What a shell runs: the block, or of a console's the lines behind its prompt."""
        if self.language != "console":
            return self.text
        return "\n".join(line[2:] for line in self.text.splitlines() if line.startswith("$ "))


@cache
def snippets(page: Path) -> list[Snippet]:
    """Every fenced or indented block of a page, in order; an indented one has the language ''."""
    out = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            out.append(Snippet(token.info.split(" ")[0], token.content, token.map[0] + 1))
    return out
