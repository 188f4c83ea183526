"""How long whole commands take from a shell: wall and processor seconds and peak memory, the least of several runs.

python benchmarks/commands.py
"""

import os
import shlex
import subprocess
import sys
from time import perf_counter

RUNS = 5
COMMANDS = (
    "--help",
    "recommend llama-13b --cluster dgx-a100-80gb --gpus 64 --global-batch 2048",
    "recommend gpt3-175b --cluster dgx-a100-80gb --gpus 1024 --global-batch 1536",
    "recommend megatron-530b --cluster dgx-a100-80gb --gpus 5120 --global-batch 2560",
    "time gpt3-175b --cluster dgx-a100-80gb --gpus 1024 --tokens 300e9 --global-batch 1536",
    "fastest x-160 --cluster dgx-a100-80gb --max-gpus 100000",
)


def once(command: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MiB of a command."""
    start = perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *shlex.split(command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"planner {command} failed with status {os.waitstatus_to_exitcode(status)}")
    return perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    print("wall s  processor s  peak MiB  planner ...")
    for command in COMMANDS:
        runs = [once(command) for _ in range(RUNS)]
        wall, processor, memory = (min(x) for x in zip(*runs, strict=True))
        print(f"{wall:6.2f} {processor:12.2f} {memory:9.0f}  {command}")


if __name__ == "__main__":
    main()
