"""The process keeps what arrays free: the same array again costs no page faults."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, threading
from planner.cli.process import keep_freed_memory
kept = {keep}() if {keep} else False
import numpy as np
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    global before, after
    for i in range(20):
        kept = [np.ones(2**19) for _ in range(64)]; del kept
        if i == 4: before = faults()
    after = faults()
thread = threading.Thread(target=work); thread.start(); thread.join()
print(after - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_arrays_taken_again_fault_no_pages():
    """15 times 64 arrays of 4 MiB, 65,536 pages; in a thread, as the serial engine's ranks are."""

    def faults(keep: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults("None") > 15 * 8192
    assert faults("keep_freed_memory") < 1024
