"""Kernels of one GPU that `planner probe` leaves out: what an efficiency profile assumes, measured in place.

    python benchmarks/gpu_kernels.py kernels.json [--seconds 0.05]

Products whose sides are no multiples of a tile or of 8, products of little depth, in fp32 and tf32, in fp8 by tensor
and by row, one for each expert beside grouped ones, attention's batched products of unfused attention, softmax,
cross-entropy, RMSNorm operation by operation, flash attention by head width, gathers of rows, launches one by one and
from a CUDA graph. Needs torch alone, and planner's own probe script for its timing. A kernel that this PyTorch lacks
is written with its message.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SCRIPT = Path(__file__).parents[1] / "planner" / "calibration" / "probe_script.py"
_spec = importlib.util.spec_from_file_location("probe_script", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
probe = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(probe)

BF16 = torch.bfloat16
Row = tuple[dict[str, Any], Callable[[], Any]]


def plain() -> Iterator[Row]:
    """bf16 products off the grid and of little depth, fp32 and tf32 on it: rows x depth times depth x columns."""
    sizes = [(8192, n, 4096) for n in (50257, 50258, 50260, 50264, 50304, 32000, 128256)]
    sizes += [(8192, 4096, d) for d in (64, 128, 256, 512, 1024, 2048, 4096)]
    sizes += [(rows, 4096, 4096) for rows in (128, 256, 512, 1024, 1536, 2048, 3072, 4096)]
    sizes += [(8192, 4096, 4096 + d) for d in (1, 2, 4, 8, 64)] + [(8192, 2304, 4608), (8192, 5120, 13824)]
    for rows, columns, depth in sizes:
        x, w = probe.many(BF16, rows, depth), probe.many(BF16, columns, depth)
        yield (
            {"kind": "product", "precision": "bf16", "rows": rows, "columns": columns, "depth": depth},
            (lambda x=x, w=w: next(x) @ next(w).t()),
        )
    for name, allowed in (("fp32", False), ("tf32", True)):
        for width in (2048, 8192):
            x, w = probe.many(torch.float32, 4096, width), probe.many(torch.float32, width, width)
            torch.backends.cuda.matmul.allow_tf32 = allowed
            yield (
                {"kind": "product", "precision": name, "rows": 4096, "columns": width, "depth": width},
                (lambda x=x, w=w: next(x) @ next(w).t()),
            )
    torch.backends.cuda.matmul.allow_tf32 = False


def fp8() -> Iterator[Row]:
    """fp8 products, scaled by tensor and by row, fast accumulation on; casts by row beside them."""
    fp8, one = torch.float8_e4m3fn, torch.ones((), device="cuda")
    for rows in (2048, 8192):
        for width in (1024, 2048, 4096, 8192):
            for columns in (width, 4 * width):
                x, w = (probe.many(BF16, *s) for s in ((rows, width), (columns, width)))
                a, b = next(x).to(fp8), next(w).to(fp8)
                by_row = torch.ones(rows, 1, device="cuda"), torch.ones(1, columns, device="cuda")
                row = {"precision": "fp8", "rows": rows, "columns": columns, "depth": width}
                for scaled, (sa, sb) in {"tensor": (one, one), "row": by_row}.items():
                    yield (
                        row | {"kind": "scaled product", "scaled": scaled},
                        (
                            lambda a=a, b=b, sa=sa, sb=sb: torch._scaled_mm(
                                a, b.t(), scale_a=sa, scale_b=sb, out_dtype=BF16, use_fast_accum=True
                            )
                        ),
                    )
            yield {"kind": "cast to fp8", "bytes": 3 * rows * width}, lambda x=x: next(x).to(fp8)


def grouped() -> Iterator[Row]:
    """Experts' products in bf16: one after another, and in PyTorch's grouped kernel; tokens are each expert's."""
    for experts, tokens, hidden, ffn in (
        (8, 1024, 4096, 14336), (8, 4096, 4096, 14336), (16, 512, 2048, 768), (16, 2048, 2048, 768),
        (16, 256, 7168, 2048), (16, 1024, 7168, 2048), (32, 128, 2048, 768), (32, 512, 7168, 2048),
    ):  # fmt: skip
        x = torch.randn(experts * tokens, hidden, device="cuda").to(BF16)
        w = torch.randn(experts, hidden, ffn, device="cuda").to(BF16)
        ends = torch.arange(tokens, tokens * experts + 1, tokens, device="cuda", dtype=torch.int32)
        row = {"precision": "bf16", "experts": experts, "rows": tokens, "depth": hidden, "columns": ffn}
        yield row | {"kind": "one by one"}, lambda x=x, w=w, e=experts: [y @ w[i] for i, y in enumerate(x.chunk(e))]
        yield row | {"kind": "grouped"}, lambda x=x, w=w, ends=ends: torch._grouped_mm(x, w, offs=ends)


def unfused() -> Iterator[Row]:
    """Attention without a fused kernel: its batched products, its softmax in 32 and 16 bits."""
    for heads, length, width in ((32, 2048, 64), (32, 2048, 80), (32, 2048, 128), (16, 4096, 128), (32, 2048, 100)):
        q, k, v = (torch.randn(heads, length, width, device="cuda").to(BF16) for _ in range(3))
        scores = torch.randn(heads, length, length, device="cuda").to(BF16)
        row = {"heads": heads, "length": length, "width": width}
        yield row | {"kind": "scores"}, lambda q=q, k=k: torch.bmm(q, k.transpose(1, 2))
        yield row | {"kind": "values"}, lambda s=scores, v=v: torch.bmm(s, v)
        if width == 64:
            yield row | {"kind": "softmax 16 bits"}, lambda s=scores: torch.softmax(s, -1)
            yield row | {"kind": "softmax fp32"}, lambda s=scores: torch.softmax(s, -1, dtype=torch.float32)


def flash() -> Iterator[Row]:
    """Flash attention by head width, PyTorch's own and cuDNN's, causal, forward and backward."""
    for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        for heads, width, length, kv in (
            (32, 64, 4096, 32), (32, 80, 4096, 32), (32, 96, 4096, 32), (32, 128, 1024, 32), (32, 128, 4096, 32),
            (32, 128, 4096, 8), (16, 192, 4096, 16), (32, 128, 512, 32), (8, 256, 4096, 8),
        ):  # fmt: skip
            batch = max(1, 8192 // length)
            q = torch.randn(batch, heads, length, width, device="cuda").to(BF16).requires_grad_()
            k, v = (torch.randn(batch, kv, length, width, device="cuda").to(BF16).requires_grad_() for _ in range(2))
            row = {"kernel": kernel, "batch": batch, "heads": heads, "kv_heads": kv, "width": width, "length": length}
            backend = getattr(SDPBackend, kernel)

            def forward(q: Any = q, k: Any = k, v: Any = v, backend: Any = backend, grouped: bool = kv != heads) -> Any:
                with sdpa_kernel(backend):
                    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

            yield row | {"kind": "forward"}, forward
            y: list[Any] = []

            def backward(y: list[Any] = y, q: Any = q, k: Any = k, v: Any = v, forward: Any = forward) -> Any:
                y[:] = y or [forward()]
                return torch.autograd.grad(y[0], (q, k, v), torch.ones_like(y[0]), retain_graph=True)

            yield row | {"kind": "backward"}, backward


def passes() -> Iterator[Row]:
    """The loss, norms, gathers, and what only a launch takes."""
    for tokens, vocab in ((4096, 32000), (8192, 128256)):
        logits = torch.randn(tokens, vocab, device="cuda").to(BF16).requires_grad_()
        labels = torch.randint(0, vocab, (tokens,), device="cuda")
        row = {"tokens": tokens, "vocab": vocab}
        yield row | {"kind": "loss forward"}, lambda x=logits, t=labels: functional.cross_entropy(x.float(), t)
        yield (
            row | {"kind": "loss both"},
            lambda x=logits, t=labels: torch.autograd.grad(functional.cross_entropy(x.float(), t), x),
        )
    x, weight = probe.many(BF16, 8192, 4096), torch.ones(4096, device="cuda", dtype=BF16)

    def eager(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16)

    yield {"kind": "eager RMSNorm", "bytes": 4 * 8192 * 4096}, lambda: eager(next(x))
    yield {"kind": "fused RMSNorm", "bytes": 4 * 8192 * 4096}, lambda: functional.rms_norm(next(x), (4096,), weight)
    order = torch.randperm(8192, device="cuda")
    yield {"kind": "rows gathered", "bytes": 4 * 8192 * 4096}, lambda: next(x).index_select(0, order)
    yield {"kind": "transposed copy", "bytes": 4 * 8192 * 4096}, lambda: next(x).t().contiguous()
    yield {"kind": "cast to fp32", "bytes": 6 * 8192 * 4096}, lambda: next(x).float()
    tiny, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tiny.add_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(100):
            tiny.add_(1.0)
    yield {"kind": "100 tiny kernels, graph"}, graph.replay
    yield {"kind": "100 tiny kernels, one by one"}, lambda: [tiny.add_(1.0) for _ in range(100)]


SECTIONS = (plain, fp8, grouped, unfused, flash, passes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each figure")
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": probe.machine(None)}
    for section in SECTIONS:
        rows, start = found.setdefault(section.__name__, []), time.perf_counter()
        try:
            for row, work in section():
                try:
                    rows.append(row | probe.timed(work, given.seconds))
                except (RuntimeError, NotImplementedError, AttributeError) as error:
                    rows.append(row | {"missing": str(error).splitlines()[0][:200]})
        except (RuntimeError, AttributeError) as error:  # the section's own tensors: the other sections count
            rows.append({"missing": str(error).splitlines()[0][:200]})
        torch.cuda.empty_cache()
        given.output.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{section.__name__}: {len(rows)} figures, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
