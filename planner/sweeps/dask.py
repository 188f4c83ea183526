"""The scheduler of a cluster: chunks as tasks of an existing Dask cluster, which does a dead worker's again."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from planner.base.errors import ExecutionError, InputError, MissingPackageError
from planner.sweeps.answer import Chunk, ChunkAnswer, answer, first_question
from planner.sweeps.versions import difference, versions

if TYPE_CHECKING:
    from distributed import Client

TIMEOUT_S = 10
WAITING_A_WORKER = 4  # tasks queued for each: none idles, and a cluster that adapts sees work to grow for
LEAST_WAITING = 64
KEPT = "what is done is kept: run the same command to go on"


class Dask:
    """An existing cluster. where: `dask://host:port`, or `dask:FILE` with the scheduler's file.

    Raises InputError if it is neither of these, MissingPackageError if dask.distributed is not installed.
    """

    def __init__(self, where: str) -> None:
        kind, _, rest = where.partition(":")
        if kind != "dask" or rest.strip("/") == "":
            raise InputError(f"--scheduler is {where!r}; allowed: local, dask://host:port or dask:scheduler-file.json")
        self.where = where
        address = f"tcp:{rest}" if rest.startswith("//") else None
        self._options = {"address": address} if address else {"scheduler_file": rest}
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise MissingPackageError(f"{where} needs Dask; pip install distributed") from None

    def answers(self, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
        """Every chunk's answer, as they come.

        Raises ExecutionError if there is no scheduler or no longer one, its workers have other versions, or a chunk
        ended several workers.
        """
        from distributed import as_completed

        _silence()
        with self._client() as client:
            _check_workers(client, self.where)
            run = uuid.uuid4().hex
            asking: dict[str, Chunk] = {}

            def submit(chunk: Chunk) -> Any:
                key = f"planner-sweep-{run}-{chunk.number}"
                asking[key] = chunk
                return client.submit(answer, chunk, key=key)

            workers = sum(client.nthreads().values())
            begun = [submit(c) for c in islice(chunks, max(LEAST_WAITING, WAITING_A_WORKER * workers))]
            # With results: those of a dead worker are missed all at once, not each for Dask's half a minute.
            completed = as_completed(begun, loop=client.loop, with_results=True, raise_errors=False)
            for future, result in completed:
                if future.status == "lost":  # its worker died with the answer: it is being done again
                    completed.add(future)
                    continue
                found = _result(future, result, asking.pop(future.key), self.where)
                if (chunk := next(chunks, None)) is not None:
                    completed.add(submit(chunk))
                yield found

    def _client(self) -> Client:
        from distributed import Client

        try:
            return Client(**self._options, timeout=TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExecutionError(f"{self.where}: no Dask scheduler answers there: {reason}") from None


def _silence() -> None:
    """No account of lost connections and workers by Dask's client: what matters of them is an error in one line."""
    for name in ["distributed", *logging.root.manager.loggerDict]:
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _result(future: Any, result: Any, chunk: Chunk, where: str) -> ChunkAnswer:
    """A task's answer; its error as ours."""
    from distributed.scheduler import KilledWorker

    if future.status == "finished":
        assert isinstance(result, ChunkAnswer), result
        return result
    if future.status == "cancelled":
        raise ExecutionError(f"{where}: the Dask scheduler is gone, or dropped the sweep; {KEPT}")
    error = future.exception()
    if isinstance(error, ExecutionError):
        raise ExecutionError(f"{where}: {error}")
    if isinstance(error, KilledWorker):
        raise ExecutionError(f"{where}: workers died on {first_question(chunk)}, perhaps for want of memory; {KEPT}")
    if isinstance(error, ImportError) or "deserializ" in str(error):
        raise ExecutionError(f"{where}: planner can't be imported there: {error}; install the same on all")
    raise error


def _check_workers(client: Client, where: str) -> None:
    """Raises ExecutionError if a worker runs other versions than ours; later workers check themselves at each chunk."""
    ours = versions()
    there = client.get_versions(packages=["planner"])
    for name, host in [("the scheduler", there["scheduler"]), *there["workers"].items()]:
        if apart := difference({x: ours[x] for x in ("planner", "python", "numpy")}, _of_host(host)):
            raise ExecutionError(f"{where}: {name} runs other versions: {apart}; install the same on all")
    for name, theirs in client.run(versions, on_error="return").items():
        if not isinstance(theirs, Mapping):
            raise ExecutionError(f"{where}: worker {name} can't run planner: {theirs}")
        if apart := difference(ours, theirs):
            raise ExecutionError(f"{where}: worker {name} runs other versions: {apart}; install the same on all")


def _of_host(host: Mapping[str, Any]) -> dict[str, str]:
    """The versions that decide, of what Dask knows of a process without running anything there."""
    packages = host["packages"]
    python = ".".join(packages["python"].split(".")[:2])
    return {"planner": packages["planner"] or "none", "python": python, "numpy": packages["numpy"] or "none"}
