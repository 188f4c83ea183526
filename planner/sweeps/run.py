"""A sweep run to its end: chunks that aren't done are answered, kept as parts, and joined into one file."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.base.errors import InputError
from planner.base.files import check_writable
from planner.sweeps.answer import Chunk, ChunkAnswer
from planner.sweeps.columns import Column, columns
from planner.sweeps.parquet import need_pyarrow, read_about, write_results
from planner.sweeps.parts import opened, parts_folder
from planner.sweeps.sweep import Sweep
from planner.sweeps.versions import difference, versions

MOST_CHUNKS = 10_000


Scheduler = Callable[[Iterator[Chunk]], Generator[ChunkAnswer]]
"""Gives every chunk's answer, in any order; takes chunks as there is room for them; closed, ends its workers. Raises
ExecutionError if no worker can give an answer."""


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """How far a sweep is: cases in all and done, layouts evaluated for these; `kept_*`: by runs before this one.

    already: the results were there, complete.
    """

    cases: int
    done: int
    layouts: int
    kept_cases: int
    kept_layouts: int
    already: bool


def run_sweep(
    sweep: Sweep,
    output: Path,
    answers_of: Scheduler,
    *,
    restart: bool = False,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
) -> SweepProgress:
    """Answer every case and write the results; go on where a run of the same sweep was ended, however that was.

    restart: forget what an unfinished run kept, and replace results of a sweep that are there.

    Raises InputError if the results or kept parts are of another sweep, MissingPackageError if pyarrow is missing,
    OutputError if a path can't be written, ExecutionError if no worker can answer.
    """
    pyarrow = need_pyarrow()
    if output.suffix != ".parquet":
        raise InputError(f"output is {output}; allowed: a path that ends in .parquet")
    check_writable(output)
    all_of_it = sweep.file.model_dump_json() + "".join(repr(x) for x in sweep.everything())
    mine = {"sweep": hashlib.sha256(all_of_it.encode()).hexdigest(), "versions": versions() | {"pyarrow": pyarrow}}
    if output.exists() and (found := _finished(output, mine, restart)) is not None:
        return found
    searches = sweep.cases.num_searches
    size = -(-searches // MOST_CHUNKS)  # of a chunk: by the sweep alone, not by who works
    ranges = [range(i, min(i + size, searches)) for i in range(0, searches, size)]
    rows = {number: len(searches) * sweep.cases.per_search for number, searches in enumerate(ranges)}
    shown = columns(sweep.cases, sweep.file.tokens)
    with opened(parts_folder(output), mine, rows, shown, restart) as parts:
        done, layouts = sum(rows[n] for n in parts.layouts), sum(parts.layouts.values())
        so_far = SweepProgress(
            cases=len(sweep.cases), done=done, layouts=layouts, kept_cases=done, kept_layouts=layouts, already=False
        )
        waiting = (_chunk(sweep, n, ranges[n], shown) for n in rows if n not in parts.layouts)
        on_progress(so_far)
        with closing(answers_of(waiting)) as answers:
            for answer in answers:
                if answer.chunk in parts.layouts:
                    continue
                parts.save(answer)
                done, layouts = so_far.done + rows[answer.chunk], so_far.layouts + answer.layouts
                so_far = replace(so_far, done=done, layouts=layouts)
                on_progress(so_far)
        definition = sweep.file.model_dump(mode="json", exclude_defaults=True)
        about = mine | {"cases": so_far.done, "layouts": so_far.layouts, "definition": definition}
        write_results(output, parts.folder, shown, (row for part in parts.answers() for row in part.rows), about)
        parts.remove()
    return so_far


def _chunk(sweep: Sweep, number: int, searches: Iterable[int], shown: tuple[Column, ...]) -> Chunk:
    return Chunk(
        number=number,
        searches=tuple(sweep.search(i) for i in searches),
        columns=shown,
        tokens=sweep.file.tokens,
        versions=versions(),
    )


def _finished(output: Path, mine: dict[str, Any], restart: bool) -> SweepProgress | None:
    """The progress of the results already there, of this very sweep; None where they are to be replaced."""
    about = read_about(output)
    if about is None:
        raise InputError(f"{output}: exists and is not the results of a sweep; give another -o")
    if restart:
        return None
    if about["sweep"] != mine["sweep"]:
        raise InputError(f"{output}: holds another sweep's results; give another -o, or --restart to replace them")
    if apart := difference(mine["versions"], about["versions"]):
        raise InputError(f"{output}: made with other versions: {apart}; give another -o, or --restart to replace them")
    cases, layouts = about["cases"], about["layouts"]
    left = parts_folder(output)
    if left.is_dir():  # killed between the results and the end
        with opened(left, mine, {}, (), False) as parts:
            parts.remove()
    return SweepProgress(cases=cases, done=cases, layouts=layouts, kept_cases=cases, kept_layouts=layouts, already=True)
