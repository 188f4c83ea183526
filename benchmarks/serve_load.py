"""Fifty clients at once against `planner serve`, hostile requests by the thousand, clients that never read; its memory.

Everything is on this machine: the server is a process of its own on the loopback address, and ends with this one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

BASE = {"model": "llama2-70b", "cluster": "dgx-h100", "gpus": "256", "batch": "1024", "batch_in": "sequences"}
CHANGES = {
    "gpus": ["128", "192", "256", "320", "384", "512"], "batch": ["512", "768", "1024", "1536", "2048"],
    "tp": ["!8", "2", "4", "8", "4,8"], "pp": ["!1", "2", "4", "8"], "seq_len": ["2048", "4096", "8192"],
    "max_memory_gib": [str(gib) for gib in range(30, 80)], "framework": ["nemo", "megatron-core", "deepspeed"],
    "recompute": ["none", "full", "selective", "!full"], "schedule": ["1f1b", "interleaved"], "zero": ["0", "1"],
    "objective": ["memory", "time"], "micro_batch": ["1", "2", "4"],
}  # fmt: skip
BESIDE = {"/answer": "", "/why": "wanted", "/taken": "text", "/timeline": "row", "/beside": "", "/x": ""}
NOISE = ["", "0", "-1", "1e400", "nan", "9" * 400, "/etc/passwd", "\x00", "!", ",", "x" * 3000, "{}", "8,8,8", "\u202e"]


def post(server: str, path: str, body: object) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(server, timeout=900)) as connection:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def changed(draw: random.Random) -> dict[str, str]:
    """The question with one change, as a user makes it."""
    name = draw.choice(list(CHANGES))
    return BASE | {name: draw.choice(CHANGES[name])}


def memory_mib(process: int) -> float:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def cpu_s(process: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def changes(server: str, process: int, draw: random.Random, count: int) -> None:
    """One user who changes one field after another: seconds until the new answer."""
    post(server, "/answer", {"question": BASE})
    took, used, new = [], [], []
    for _ in range(count):
        question, before, start = changed(draw), cpu_s(process), time.perf_counter()
        status, _ = post(server, "/answer", {"question": question})
        assert status == 200
        took.append(time.perf_counter() - start)
        used.append(cpu_s(process) - before)
        new.append(used[-1] > 0.05)
    took.sort()
    fresh = sorted(u for u, is_new in zip(used, new, strict=True) if is_new)
    print(f"{count} changes: median {took[count // 2]:.2f} s, 95 % under {took[int(0.95 * count)]:.2f} s; "
          f"{sum(t < 0.5 for t in took) / count:.0%} under 0.5 s; processor time of the {len(fresh)} searched: "
          f"median {fresh[len(fresh) // 2]:.2f} s, 95 % under {fresh[int(0.95 * len(fresh))]:.2f} s")  # fmt: skip


def crowd(server: str, draw: random.Random, clients: int) -> None:
    """Clients that all ask at once, each another question."""
    questions = [
        changed(draw) | {"batch": str(64 * (8 + n % 20)), "gpus": str(64 * (2 + n % 5))} for n in range(clients)
    ]
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        done = list(pool.map(lambda q: post(server, "/answer", {"question": q})[0], questions))
    print(f"{clients} clients at once: {done.count(200)} answered in {time.perf_counter() - start:.0f} s")
    assert done == [200] * clients


def deaf(server: str, clients: int) -> list[socket.socket]:
    """Clients that ask and never read."""
    host, port = server.split(":")
    body = json.dumps({"question": BASE}).encode()
    kind = f"content-type: application/json\r\ncontent-length: {len(body)}"
    head = f"POST /answer HTTP/1.1\r\nhost: {server}\r\n{kind}\r\n\r\n"
    out = []
    for _ in range(clients):
        connection = socket.create_connection((host, int(port)))
        connection.sendall((head.encode() + body) * 3)
        out.append(connection)
    return out


def hostile(server: str, draw: random.Random, count: int) -> None:
    """Fields of noise, bodies cut off, bytes changed: each is answered by 200 or 4xx, or the connection ends."""
    host, port = server.split(":")
    fields = [*BASE, *CHANGES, "config", "network", "nose", "ep", "exclude"]
    statuses: dict[int, int] = {}
    for n in range(count):
        question = BASE | {draw.choice(fields): draw.choice(NOISE) for _ in range(draw.randint(1, 3))}
        path = draw.choice(list(BESIDE))
        said = draw.choice(["tp=9", "=", "x=1", "tp=" + "9" * 99, "--tensor-model-parallel-size 8", *NOISE])
        body = json.dumps({"question": question} | ({BESIDE[path]: said} if BESIDE[path] else {}))
        if n % 2:
            raw = bytearray(
                f"POST /why HTTP/1.1\r\nhost: {server}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()[:400]
            )
            for _ in range(draw.randint(0, 8)):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(bytes(raw[: draw.randrange(1, len(raw))]))
        else:
            status, _ = post(server, path, json.loads(body))
            statuses[status] = statuses.get(status, 0) + 1
    print(f"{count} hostile requests: {dict(sorted(statuses.items()))}, the rest cut off")
    assert all(status < 500 for status in statuses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--hostile", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        server = process.stdout.readline().split("http://")[1].strip().rstrip("/")
        changes(server, process.pid, draw, given.changes)
        crowd(server, draw, given.clients)
        silent = deaf(server, 20)
        hostile(server, draw, given.hostile)
        for connection in silent:
            connection.close()
        assert post(server, "/answer", {"question": BASE})[0] == 200
        print(f"most memory: {memory_mib(process.pid):.0f} MiB")
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main()
