"""A case: files in a folder of their own and a command that reads them; drawn by Hypothesis, run, judged."""

from __future__ import annotations

import json
import random
import tempfile
import tomllib
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from planner.base.state import DIGEST, digest
from tests.fuzz.corpus import KINDS, Kind, bytes_of
from tests.fuzz.harness import Outcome, faults, run, snapshot
from tests.fuzz.mutations import broken_bytes, csv_text, mutated_grid, mutated_tree, toml_text

__all__ = ["Case", "byte_case", "judge", "option_case", "sound_cases", "structural_cases"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files by name, and a command in which `@x` stands for the path of x."""

    files: dict[str, bytes]
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The words as a person would read them."""
        return " ".join(self.words)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that the command is to write."""
        return tuple(word[1:] for word in self.words if word.startswith("@out"))

    def argv(self, folder: Path) -> list[str]:
        """The command's arguments with their paths."""
        return [_with_path(word, folder) for word in self.words]


def _with_path(word: str, folder: Path) -> str:
    """`@x` as the path of x, `@@x` as that path behind an @."""
    if word.startswith("@@"):
        return f"@{folder / word[2:]}"
    return str(folder / word[1:]) if word.startswith("@") else word


def judge(case: Case, limit_s: float = 60.0) -> tuple[Outcome, list[str]]:
    """Run a case in a new folder: its outcome, and what about it breaks a promise."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        for file, data in case.files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(data)
        before = snapshot(folder)
        outcome = run(case.argv(folder), limit_s)
        return outcome, faults(outcome, folder, before, case.outputs)


def _case(kind: Kind, data: bytes, command: str) -> Case:
    files = {name: bytes_of(text) for name, text in (kind.beside or {}).items()}
    return Case(files=files | {kind.name: data}, words=tuple(command.split()))


def sound_cases() -> list[Case]:
    """Every example as it is, with its first command."""
    return [_case(kind, bytes_of(example), kind.commands[0]) for kind in KINDS for example in kind.examples]


@st.composite
def structural_cases(draw: st.DrawFn, slow: bool = True) -> Case:
    """A file whose parsed form was mutated, written again; slow: also kinds whose sound files take long."""
    kind = draw(st.sampled_from([k for k in KINDS if slow or not k.slow]))
    example = draw(st.sampled_from(kind.examples))
    command = draw(st.sampled_from(kind.commands))
    if isinstance(example, bytes) or kind.name.endswith((".sh", ".log")):  # no structure to mutate that we know of
        return _case(kind, broken_bytes(bytes_of(example), random.Random(draw(st.integers(0, 2**32)))), command)
    if isinstance(example, str):
        text = toml_text(draw(mutated_tree(tomllib.loads(example))))
    elif isinstance(example, dict):
        tree = draw(mutated_tree(example))
        if kind.signed and draw(st.booleans()):
            tree = {key: value for key, value in tree.items() if key != DIGEST}
            tree[DIGEST] = digest(tree).hex()
        text = json.dumps(tree, indent=draw(st.sampled_from([None, 1])))
    else:
        text = csv_text(draw(mutated_grid(example)))
    if draw(st.integers(0, 9)) == 0:
        text = text.replace("\n", "\r\n")
    mark = "\ufeff" if draw(st.integers(0, 9)) == 0 else ""
    return _case(kind, (mark + text).encode(errors="surrogatepass"), command)


def byte_case(seed: int, slow: bool = True) -> Case:
    """A file of random edits of its bytes; the same for the same seed."""
    chance = random.Random(seed)
    kind = chance.choice([k for k in KINDS if slow or not k.slow])
    data = broken_bytes(bytes_of(chance.choice(kind.examples)), chance)
    return _case(kind, data, chance.choice(kind.commands))


def option_case(argv: tuple[str, ...]) -> Case:
    """A command of the matrix of options, with the sound files that it may name."""
    named = [kind for kind in KINDS if f"@{kind.name}" in argv]
    files = {name: bytes_of(text) for kind in named for name, text in (kind.beside or {}).items()}
    files |= {kind.name: bytes_of(kind.examples[0]) for kind in named}
    return Case(files=files, words=argv)
