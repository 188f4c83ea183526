"""What this machine's PyTorch achieves: products, attention, memory, launches, an optimizer's step, collectives.

    python probe.py                                    # one GPU, or the processor
    torchrun --nproc-per-node 8 probe.py               # a node; with --nnodes 2 across the network too

Needs only torch. Writes probe.json (--output) after each figure: a probe that is killed keeps what it measured.
Then, where planner is installed: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine
Nothing is trained, downloaded or sent. Every figure is the median of repeated runs; `spread` is their median distance
from it, relative. All ranks measure at the same time, as they train at the same time; rank 0's figures are written.
"""

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional

GPU = torch.cuda.is_available()
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
LOCAL, LOCAL_WORLD = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
DEVICE = torch.device("cuda", LOCAL) if GPU else torch.device("cpu")
WIDTHS = (1024, 2048, 4096, 8192) if GPU else (128, 256, 512)
ROWS = (2048, 8192) if GPU else (64, 256, 1024)
CACHE = 2**26  # bytes of operands that take turns, more than a cache holds: a step comes back to one after all others
# A sample lasts so long that the clock and the last launch don't count in it; on a processor several turns of a
# scheduler, so that where processes share a core all their waits count.
SAMPLE = 1e-3 if GPU else 2e-2
LENGTHS = (2048, 4096, 8192, 16384) if GPU else (128, 256, 512)
BYTES = tuple(2**k for k in ((16, 20, 24, 28, 30) if GPU else (12, 16, 20, 22, 24)))
FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16} if GPU else {"fp32": torch.float32}
FP8 = GPU and torch.version.cuda and torch.cuda.get_device_capability(DEVICE) >= (8, 9)


def wait():
    """Until the device has done what it was given."""
    if GPU:
        torch.cuda.synchronize()


def timed(work, seconds, together=False):
    """Median seconds of some work, and its spread. together: ranks run it as one, so all repeat it as often."""
    for _ in range(2):
        work()
    wait()
    start = time.perf_counter()
    work()
    wait()
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, int(min(SAMPLE, seconds) / once))
    samples = max(5, min(50, int(seconds / (once * inner))))
    if together:
        shared = torch.tensor([inner, samples], device=DEVICE)
        dist.broadcast(shared, 0)
        inner, samples = shared.tolist()
    found = []
    for _ in range(samples):
        if together:
            dist.barrier()
        wait()
        start = time.perf_counter()
        for _ in range(inner):
            work()
        wait()
        found.append((time.perf_counter() - start) / inner)
    middle = statistics.median(found)
    return {"seconds": middle, "spread": statistics.median(abs(x - middle) for x in found) / middle}


def many(dtype, *shape):
    """Tensors of a shape in turn: in training none is in the cache when its turn comes."""
    n = max(1, CACHE // (dtype.itemsize * math.prod(shape)))
    return itertools.cycle(torch.randn(n, *shape, device=DEVICE).to(dtype).unbind())


def machine():
    """What was measured on."""
    out = {"torch": torch.__version__, "host": platform.node(), "world": WORLD, "local_world": LOCAL_WORLD}
    if not GPU:
        out |= {"device": "cpu", "name": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
        whole = {"memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")} if os.name == "posix" else {}
        return out | whole  # the node's
    props = torch.cuda.get_device_properties(DEVICE)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None
    return out | {
        "device": "cuda",
        "name": props.name,
        "memory_bytes": props.total_memory,
        "cuda": torch.version.cuda,
        "compute_units": props.multi_processor_count,
        "nccl": nccl,
        "count": torch.cuda.device_count(),
    }


def products(seconds):
    """y = x w, the input's gradient y w^T, the weight's x^T y; sizes: rows x depth times depth x columns."""
    shapes = [(rows, width, columns) for rows in ROWS for width in WIDTHS for columns in (width, 4 * width)]
    for name, dtype in (FLOATS | ({"fp8": torch.float8_e4m3fn} if FP8 else {})).items():
        for rows, width, columns in shapes:
            x, w, y = (many(dtype, *s) for s in ((rows, width), (columns, width), (rows, columns)))
            kinds = {
                "forward": ((rows, columns, width), lambda: next(x) @ next(w).t()),
                "input": ((rows, width, columns), lambda: next(y) @ next(w)),
                "weight": ((columns, width, rows), lambda: next(y).t() @ next(x)),
            }
            for kind, (shape, work) in kinds.items():
                sizes = dict(zip(("rows", "columns", "depth"), shape))
                if name == "fp8":
                    work = scaled(dtype, kind, **sizes)
                yield {"precision": name, "kind": kind} | sizes | timed(work, seconds)


def scaled(dtype, kind, rows, columns, depth):
    """A product of fp8's kernels: rows by rows, without casts; fast sums in the forward one, as Transformer Engine."""
    a, b, one = many(dtype, rows, depth), many(dtype, columns, depth), torch.ones((), device=DEVICE)
    how = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": kind == "forward"}
    return lambda: torch._scaled_mm(next(a), next(b).t(), **how)


def experts(seconds):
    """Products of eight experts at once, where torch has a grouped one, and one by one."""
    name, dtype = ("bf16", torch.bfloat16) if GPU else ("fp32", torch.float32)
    grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    for rows, width in itertools.product(ROWS, WIDTHS[:-1]):
        x, w = many(dtype, rows, width), torch.randn(8, width, width, device=DEVICE).to(dtype)
        ends = torch.arange(1, 9, device=DEVICE, dtype=torch.int32) * (rows // 8)
        works = {
            "grouped": lambda: grouped(next(x), w, offs=ends),
            "one by one": lambda: [a @ b for a, b in zip(next(x).chunk(8), w)],
        }
        for kind, work in works.items():
            row = {"precision": name, "kind": kind, "groups": 8, "rows": rows // 8, "columns": width, "depth": width}
            yield row | timed(work, seconds)


def attention(seconds):
    """Causal attention, forward and backward, by kernel: PyTorch's flash, and cuDNN's on a GPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shapes = ((16, 128),) if GPU else ((4, 64), (8, 32))
    name, dtype = ("bf16", torch.bfloat16) if GPU else ("fp32", torch.float32)
    for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION") if GPU else ("FLASH_ATTENTION",):
        for length, (heads, width) in itertools.product(LENGTHS, shapes):
            size = heads * length * width * dtype.itemsize
            turns = max(1, CACHE // (8 * size))  # of queries, keys, values, the output, and the gradients of all
            with sdpa_kernel(getattr(SDPBackend, kernel)):
                made = [
                    attended(torch.randn(4, 1, heads, length, width, device=DEVICE).to(dtype)) for _ in range(turns)
                ]
                turn = itertools.cycle(made)
                passes = {
                    "forward": lambda: functional.scaled_dot_product_attention(*next(turn)[0], is_causal=True),
                    "backward": lambda: backward(*next(turn)),
                }
                for kind, work in passes.items():
                    shape = {"heads": heads, "width": width, "length": length}
                    row = {"kernel": kernel, "kind": kind, "precision": name}
                    yield row | shape | timed(work, seconds)


def attended(given):
    """Queries, keys and values, their attention, and a gradient of it."""
    inputs = [x.requires_grad_() for x in given[:3].unbind()]
    return inputs, functional.scaled_dot_product_attention(*inputs, is_causal=True), given[3]


def backward(inputs, y, gradient):
    """The gradients of queries, keys and values."""
    return torch.autograd.grad(y, inputs, gradient, retain_graph=True)


def memory(seconds):
    """Passes over memory: tensors of a size that are read and written. heads: queries by head and their positions."""
    dtype = torch.bfloat16 if GPU else torch.float32
    for size in [n for n in BYTES if n >= 2**20] if GPU else [2**k for k in range(17, 24)]:
        shape = size // dtype.itemsize // 256, 256
        a, b, leaf = many(dtype, *shape), many(dtype, *shape), next(many(dtype, *shape)).requires_grad_()
        at, made = torch.ones(shape[0], 64, device=DEVICE, dtype=dtype), functional.silu(leaf)
        works = {
            "copy": (2, lambda: next(a).clone()),
            "add": (3, lambda: next(a) + next(b)),
            "heads": (2, lambda: next(a).view(-1, 4, 64).transpose(0, 1) * at),
            "silu": (2, lambda: functional.silu(next(a))),
            "silu backward": (3, lambda: torch.autograd.grad(made, leaf, next(b), retain_graph=True)),
            "layer_norm": (2, lambda: functional.layer_norm(next(a), (256,))),
        }
        for kind, (times, work) in works.items():
            yield {"kind": kind, "bytes": times * size} | timed(work, seconds)


def launch(seconds):
    """An operation so small that only its launch, and on a processor its call, takes time."""
    a = torch.ones(8, device=DEVICE)
    yield {"kind": "tiny add"} | timed(lambda: a.add_(1.0), seconds)


class TinyLayer(torch.nn.Module):
    """A layer so small that only its calls take time: eager norms, rotary positions, attention, a gated MLP."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False, device=DEVICE) for _ in range(7))
        self.weight = torch.nn.Parameter(torch.ones(32, device=DEVICE))

    def norm(self, x):
        """An eager RMSNorm."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x):
        """Eight tokens of two heads, or of one on each of two ranks."""
        n, at = self.norm(x), torch.ones(8, 16, device=DEVICE)
        q, k, v = (linear(n).view(1, 8, -1, 16).transpose(1, 2) for linear in self.linear[:3])
        q, k = (y * at + torch.cat((-y[..., 8:], y[..., :8]), -1) * at for y in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.linear[3](y.transpose(1, 2).reshape(1, 8, -1))
        n = self.norm(x)
        return x + self.linear[6](functional.silu(self.linear[4](n)) * self.linear[5](n))


def host(seconds):
    """The host's time of a layer's passes; two ranks are PyTorch's pretended ones: what its Python takes is left."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield from layers(seconds)
    finally:
        dist.destroy_process_group()


def layers(seconds):
    """Of eight layers an eighth: plain, recomputed, cut or sharded over two ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.utils.checkpoint import checkpoint

    x, mesh = torch.randn(1, 8, 32, device=DEVICE), init_device_mesh(DEVICE.type, (2,))
    plan = {f"linear.{i}": RowwiseParallel() if i in (3, 6) else ColwiseParallel() for i in range(7)}
    for kind in ("plain", "tensor", "sharded"):
        stack = torch.nn.Sequential(*(TinyLayer() for _ in range(8)))
        for layer in stack:
            if kind == "tensor":
                parallelize_module(layer, mesh, plan)
            elif kind == "sharded":
                fully_shard(layer, mesh=mesh)
        if kind == "sharded":
            fully_shard(stack, mesh=mesh)  # else each layer is a root, which stays gathered

        def both():
            stack(x).backward(x)
            stack.zero_grad()

        def recomputed():
            y = x
            for layer in stack:
                y = checkpoint(layer, y, use_reentrant=False)
            y.backward(x)
            stack.zero_grad()

        more = {"forward": lambda: stack(x), "recomputed": recomputed} if kind == "plain" else {}
        for one, work in ({kind: both} | more).items():
            row = timed(work, 4 * seconds)
            yield row | {"kind": one, "seconds": row["seconds"] / 8}


def optimizer(seconds):
    """A step of AdamW in fp32: reads parameter, gradient and two moments, writes three of them (28 bytes each)."""
    n = 2**26 if GPU else 2**20
    p = torch.nn.Parameter(torch.randn(n, device=DEVICE))
    p.grad = torch.randn(n, device=DEVICE)
    adam = torch.optim.AdamW([p], fused=True)
    yield {"kind": "adamw fused", "parameters": n} | timed(adam.step, seconds)


def collectives(seconds):
    """All ranks at once. bytes: of the whole tensor, before or after, whichever is larger; a send's its own."""
    for size in BYTES if WORLD > 1 else ():
        n = max(size // 4 // WORLD, 1) * WORLD
        wholes, others, parts = (many(torch.float32, of) for of in (n, n, n // WORLD))
        peer = RANK ^ 1

        def send():
            if peer < WORLD:
                first, second = (dist.send, dist.recv) if peer > RANK else (dist.recv, dist.send)
                first(next(wholes), peer)
                second(next(others), peer)

        works = {
            "all_reduce": lambda: dist.all_reduce(next(wholes)),
            "all_gather": lambda: dist.all_gather_into_tensor(next(wholes), next(parts)),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(next(parts), next(wholes)),
            "all_to_all": lambda: dist.all_to_all_single(next(others), next(wholes)),
            "send and back": send,
        }
        for kind, work in works.items():
            row = {"kind": kind, "bytes": 4 * n, "ranks": WORLD, "local": LOCAL_WORLD}
            try:
                yield row | timed(work, seconds, together=True)
            except (RuntimeError, NotImplementedError) as error:  # a backend may lack it
                yield row | {"missing": str(error).splitlines()[0][:200]}


def groups(seconds):
    """All-reduces of groups of ranks, all side by side: neighbours, or ranks a stride apart."""
    for members in (n for n in (2, 4, 8) if n < WORLD and WORLD % n == 0):
        for stride in (1, WORLD // members):
            block = members * stride
            starts = [first + i for first in range(0, WORLD, block) for i in range(stride)]
            mine = dist.new_subgroups_by_enumeration([list(range(a, a + block, stride)) for a in starts])[0]
            for size in BYTES[-3:-1]:
                wholes = many(torch.float32, size // 4)
                row = {"kind": "all_reduce", "bytes": size, "ranks": members, "stride": stride, "local": LOCAL_WORLD}
                yield row | timed(lambda: dist.all_reduce(next(wholes), group=mine), seconds, together=True)


def overlap(seconds):
    """A product beside an all-reduce: how long each alone, both at once."""
    if WORLD == 1:
        return
    width = WIDTHS[-2]
    x = torch.randn(ROWS[-1], width, device=DEVICE)
    w, wholes = torch.randn(width, width, device=DEVICE), many(torch.float32, BYTES[-2] // 4)

    def both():
        pending = dist.all_reduce(next(wholes), async_op=True)
        x @ w
        pending.wait()

    works = {"product": lambda: x @ w, "all_reduce": lambda: dist.all_reduce(next(wholes)), "both": both}
    for kind, work in works.items():
        yield {"kind": kind} | timed(work, seconds, together=True)


def ranks(seconds):
    """The same product on every rank: which are slower than the median."""
    width = WIDTHS[-1]
    x = torch.randn(width, width, device=DEVICE).to(torch.bfloat16 if GPU else torch.float32)
    mine = timed(lambda: x @ x, 5 * seconds) | {"rank": RANK, "host": platform.node()}
    every = [mine] * WORLD
    if WORLD > 1:
        dist.all_gather_object(every, mine)
    usual = statistics.median(row["seconds"] for row in every)
    yield from (row | {"slower": row["seconds"] / usual - 1.0} for row in every)


def under_load(_):
    """Memory that context and libraries take, clocks, power and temperature right after the load."""
    if not GPU:
        return
    free, total = torch.cuda.mem_get_info()
    row = {"taken_bytes": total - free, "reserved_bytes": torch.cuda.memory_reserved(), "total_bytes": total}
    fields = "clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu"
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={LOCAL}"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        row |= dict(zip(fields.split(","), (cell.strip() for cell in said.split(","))))
    except (OSError, subprocess.SubprocessError):
        pass
    yield row


SECTIONS = (launch, host, products, experts, attention, memory)
SECTIONS += (optimizer, collectives, groups, overlap, ranks, under_load)


def save(found, path):
    """The file, whole: another takes its place."""
    with open(path + ".part", "w") as file:
        json.dump(found, file, indent=1)
    os.replace(path + ".part", path)


def main():
    """Every section in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="probe.json")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each figure; 0.05")
    given = parser.parse_args()
    if GPU:
        torch.cuda.set_device(DEVICE)
    found = {"format": "planner probe 1", "machine": machine()}
    for section in SECTIONS:
        if section is products and WORLD > 1:  # after the pretended ranks of those before
            dist.init_process_group("nccl" if GPU else "gloo")
        rows = found[section.__name__] = []
        try:
            for row in section(given.seconds):
                rows.append(row)
                if RANK == 0:
                    save(found, given.output)
        except (RuntimeError, NotImplementedError, ImportError) as error:  # no memory, say: the other figures count
            found.setdefault("failed", {})[section.__name__] = str(error).splitlines()[0][:200]
        if GPU:
            torch.cuda.empty_cache()
        if RANK == 0:
            save(found, given.output)
            print(f"{section.__name__}: {len(rows)} figures", flush=True)
    if RANK == 0:
        for row in found["ranks"]:
            if row["slower"] > 0.05:
                print(f"rank {row['rank']} on {row['host']}: products {row['slower']:.0%} slower than the median")
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # all is written; gloo's threads now and then abort a process that ends by itself
