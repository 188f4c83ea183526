"""The scheduler of one machine: a process a core, each with one chunk at a time; a dead one's chunk is done again."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from planner.base.errors import ExecutionError, PlannerError
from planner.choices.choice import whole
from planner.sweeps.answer import Chunk, ChunkAnswer, answer, first_question

MOST_DEATHS = 3
"""Workers that one chunk may end before it is given up."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    chunk: Chunk | None = None


class Local:
    """Processes of this machine. Raises InputError for fewer than one worker."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = whole("--workers", cores() if workers is None else workers, most=1024)

    def answers(self, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
        """Every chunk's answer, as they come. Raises ExecutionError for a chunk that ended several workers."""
        crew: list[_Worker] = []
        again: deque[Chunk] = deque()
        deaths: Counter[int] = Counter()
        try:
            while True:
                self._employ(crew, again, chunks)
                busy = [w for w in crew if w.chunk]
                if not busy:
                    return
                ready = connection.wait([w.pipe for w in busy])
                for worker in (w for w in busy if w.pipe in ready):
                    found, chunk = _received(worker), worker.chunk
                    assert chunk is not None
                    worker.chunk = None
                    if found is not None:
                        yield found
                        continue
                    crew.remove(worker)
                    deaths[chunk.number] += 1
                    if deaths[chunk.number] >= MOST_DEATHS:
                        died = f"{MOST_DEATHS} workers died on {first_question(chunk)}"
                        raise ExecutionError(
                            f"{died} (exit code {worker.process.exitcode}, -9 perhaps for want of memory); what is "
                            "done is kept: run the same command to go on, with fewer --workers"
                        )
                    again.append(chunk)
        finally:
            for worker in crew:
                worker.process.kill()
            for worker in crew:
                worker.process.join()

    def _employ(self, crew: list[_Worker], again: deque[Chunk], chunks: Iterator[Chunk]) -> None:
        """A chunk for each worker that has none, and a new worker for each that is wanted and not there."""
        idle = [w for w in crew if w.chunk is None]
        while (idle or len(crew) < self.workers) and (chunk := again.popleft() if again else next(chunks, None)):
            if not idle:
                crew.append(_hired())
            worker = idle.pop() if idle else crew[-1]
            worker.chunk = chunk
            with suppress(OSError):  # it died idle: seen when its answer is waited for
                worker.pipe.send(chunk)


def _hired() -> _Worker:
    # Spawned, not forked: it inherits neither locks nor the other workers' pipes, so each end sees the other's death.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with _one_thread():
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries in processes started here use one thread each: there is a process for every core."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _received(worker: _Worker) -> ChunkAnswer | None:
    """A worker's answer, None if it died."""
    try:
        found = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        return None
    if isinstance(found, PlannerError):
        raise found
    if isinstance(found, str):
        raise RuntimeError(f"in a worker:\n{found}")
    assert isinstance(found, ChunkAnswer)
    return found


def _work(pipe: Connection) -> None:
    """A worker's life: chunks from the pipe, answers into it, until its starter ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the starter, who ends the workers
    threading.Thread(target=_end_with_starter, daemon=True).start()
    while True:
        try:
            chunk = pipe.recv()
        except EOFError:
            return
        found: ChunkAnswer | ExecutionError | str
        try:
            found = answer(chunk)
        except ExecutionError as error:
            found = error
        except Exception:
            found = traceback.format_exc()
        pipe.send(found)


def _end_with_starter() -> None:
    """Without this a worker whose starter was killed would finish its chunk for nobody."""
    starter = multiprocessing.parent_process()
    if starter is not None:
        connection.wait([starter.sentinel])
        os._exit(1)
