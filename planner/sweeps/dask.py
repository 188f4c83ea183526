"""The scheduler of a cluster: chunks as tasks of a Dask cluster that runs already, which does a dead worker's again."""

import logging
from collections.abc import Generator, Iterator
from itertools import islice

from planner.base.errors import ExecutionError, MissingPackageError
from planner.sweeps.answer import Chunk, ChunkAnswer, answer

TIMEOUT_S = 10
WAITING_A_WORKER = 4  # tasks queued for each, so that none idles
KEPT = "what is done is kept: run the same command to go on"


def answers_on(address: str, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
    """Every chunk's answer, as they come, of the cluster whose scheduler is at an address (`tcp://host:8786`).

    Raises MissingPackageError if Dask's `distributed` is not installed. Raises ExecutionError if there is no scheduler
    or no longer one, or a chunk ended several workers or met other versions than ours.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise MissingPackageError("--dask needs Dask; pip install distributed") from None
    from concurrent.futures import CancelledError

    from distributed.scheduler import KilledWorker

    for name in ["distributed", *logging.root.manager.loggerDict]:  # what matters of a lost worker is an error here
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ExecutionError(f"--dask is {address!r}: no Dask scheduler answers there: {error}") from None
    with client:
        room = WAITING_A_WORKER * max(sum(client.nthreads().values()), 1)
        begun = [client.submit(answer, chunk, pure=False) for chunk in islice(chunks, room)]
        asked = as_completed(begun, loop=client.loop)
        for future in asked:
            try:
                found = future.result()
            except KilledWorker:
                raise ExecutionError(f"{address}: workers died on a case, perhaps for want of memory; {KEPT}") from None
            except (CancelledError, OSError, TimeoutError):
                raise ExecutionError(f"{address}: the Dask scheduler is gone, or dropped the sweep; {KEPT}") from None
            if (chunk := next(chunks, None)) is not None:
                asked.add(client.submit(answer, chunk, pure=False))
            yield found
