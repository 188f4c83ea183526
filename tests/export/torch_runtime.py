"""Runs a schedule CSV in PyTorch's pipeline runtime and compares the gradients with one process that has no pipeline.

python -m tests.export.torch_runtime FILE.csv --micro-batches 8 [--timeout 60] [--skip 1W2]

Imports torch once, then forks one process a rank (gloo on the loopback, no port: a file is the rendezvous). Prints one
JSON object: the largest difference of any parameter's gradient, relative to that gradient's largest entry; the cells
that each rank ran. Ends with 1 and the reason on stderr where a rank fails or waits for ever.

Without arguments it answers one case a line of standard input, a JSON list of them, each in a process forked from the
one that imported torch: a line with its exit code and what it said.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 2, 5, 11
SEQUENCES_A_MICRO_BATCH = 2


def make_stages(count: int):
    """A small causal transformer in fp64, one block a stage; embedding in the first, head in the last."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, first: bool, last: bool) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
            self.before_attention = nn.LayerNorm(WIDTH)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.before_mlp = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 2 * WIDTH)
            self.down = nn.Linear(2 * WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

        def forward(self, x):
            x = x if self.embedding is None else self.embedding(x)
            q, k, v = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
            q, k, v = (t.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for t in (q, k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            x = x + self.down(functional.gelu(self.up(self.before_mlp(x))))
            return x if self.head is None else self.head(x)

    torch.manual_seed(1)
    return [Block(first=s == 0, last=s == count - 1).double() for s in range(count)]


def loss_of(output, target):
    from torch.nn import functional

    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def make_batch(micro_batches: int):
    """Tokens and targets; every micro-batch differs, so one that is missed or doubled changes the gradients."""
    import torch

    generator = torch.Generator().manual_seed(2)
    shape = (micro_batches * SEQUENCES_A_MICRO_BATCH, TOKENS)
    return tuple(torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))


def run_rank(rank: int, rows: list[list[str]], options: argparse.Namespace, folder: Path) -> None:
    """One rank: its stages through the runtime; gradients and the cells that were run into a file."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=len(rows))
    held = [sorted(set(_stages(row))) for row in rows]
    count = 1 + max(max(stages) for stages in held)
    modules = make_stages(count)
    stages = [PipelineStage(modules[s], s, count, torch.device("cpu")) for s in held[rank]]
    runtime = _PipelineScheduleRuntime(stages, options.micro_batches, loss_fn=loss_of)
    runtime._load_csv(str(options.path), format="compute_only")
    for stage in stages:
        skip_weight_gradient(stage, options.skip)
    tokens, target = make_batch(options.micro_batches)
    runtime.step(*([tokens] if 0 in held[rank] else []), target=target if count - 1 in held[rank] else None)
    gradients = {f"{s}.{n}": p.grad for s in held[rank] for n, p in modules[s].named_parameters()}
    ran = [str(action) for action in runtime.pipeline_order_with_comms[rank] if action.is_compute_op]
    torch.save({"gradients": gradients, "ran": ran}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def skip_weight_gradient(stage, cell: str) -> None:
    """Leave one weight gradient out, to see that the comparison finds it."""
    whole = stage.backward_weight_one_chunk

    def partial(micro_batch: int, last_backward: bool = False) -> None:
        if f"{stage.stage_index}W{micro_batch}" != cell:
            whole(micro_batch, last_backward=last_backward)

    stage.backward_weight_one_chunk = partial


def _stages(row: list[str]) -> list[int]:
    from torch.distributed.pipelining.schedules import _Action

    actions = [_Action.from_str(cell) for cell in row]
    leaves = [leaf for a in actions if a is not None for leaf in (a.sub_actions or (a,))]
    return [leaf.stage_index for leaf in leaves]


def fork_ranks(rows: list[list[str]], options: argparse.Namespace, folder: Path) -> None:
    """All ranks to their end; when one fails or time is up, the others are ended too."""
    left = {}
    for rank in range(len(rows)):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(rank, rows, options, folder)
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        left[child] = rank
    deadline, failed = time.monotonic() + options.timeout, ""
    while left and not failed:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            rank = left.pop(child)
            failed = f"rank {rank} failed" if status else ""
        elif time.monotonic() > deadline:
            failed = f"ranks {sorted(left.values())} still ran after {options.timeout:g} s"
        else:
            time.sleep(0.01)
    if failed:
        for child in left:
            os.kill(child, 9)
            os.waitpid(child, 0)
        sys.exit(failed)


def compare(count: int, micro_batches: int, results: list[dict]) -> dict:
    """The largest relative difference of the ranks' gradients from those of one process, and what it compared."""
    from torch.nn import Sequential

    modules = make_stages(count)
    tokens, target = make_batch(micro_batches)
    loss_of(Sequential(*modules)(tokens), target).backward()
    gradients = {name: g for result in results for name, g in result["gradients"].items()}
    expected = {f"{s}.{n}": p.grad for s, module in enumerate(modules) for n, p in module.named_parameters()}
    worst, name = max((_difference(gradients.get(n), g), n) for n, g in expected.items())
    return {
        "worst": worst,
        "name": name,
        "parameters": len(expected),
        "unknown": sorted(set(gradients) - set(expected)),
        "ran": [result["ran"] for result in results],
    }


def _difference(gradient, expected) -> float:
    """Largest difference over the largest entry; infinite where the gradient is missing or not a number."""
    difference = float("nan") if gradient is None else float((gradient - expected).abs().max() / expected.abs().max())
    return difference if difference == difference else float("inf")


def answer(arguments: list[str]) -> None:
    """One case, as the command line has it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--skip", default="", help="a W that is left out, to see that the comparison finds it")
    options = parser.parse_args(arguments)
    signal.alarm(int(options.timeout) + 60)
    import torch

    rows = [line.split(",") for line in options.path.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fork_ranks(rows, options, folder)
        results = [torch.load(folder / f"rank{rank}.pt") for rank in range(len(rows))]
    count = 1 + max(stage for row in rows for stage in _stages(row))
    print(json.dumps(compare(count, options.micro_batches, results)))


def answer_all() -> None:
    """Every line of standard input."""
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = 1
                try:
                    answer(json.loads(line))
                    code = 0
                except SystemExit as left:
                    print(left.code, file=sys.stderr)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            out.seek(0)
            err.seek(0)
            said = {"returncode": os.waitstatus_to_exitcode(status), "stdout": out.read(), "stderr": err.read()}
        print(json.dumps(said), flush=True)


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import torch
    import torch.distributed.pipelining.schedules  # before the fork, once for all ranks

    torch.set_num_threads(1)
    if sys.argv[1:]:
        answer(sys.argv[1:])
    else:
        answer_all()


if __name__ == "__main__":
    main()
