"""What Transformer Engine's GroupedLinear takes by experts of 16 tokens, where the GPU has next to nothing to do.

    python benchmarks/grouped_host.py grouped.json    # needs one GPU and Transformer Engine

Each pass is timed alone, twenty times after ten that don't count; weights' gradients are summed in fp32, as Megatron-LM
has it. The slope over the experts is the host's time for one, of which `host_expert_us` has two such layers.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import transformer_engine.pytorch as te

EXPERTS, TOKENS, WIDTH, INNER = (1, 4, 8, 16, 32, 64, 128), 16, 1024, 512


def timed(experts: int) -> dict[str, float]:
    """Median microseconds of a forward and a backward pass, until the call returns and until the GPU is done."""
    layer = te.GroupedLinear(
        experts, WIDTH, INNER, bias=False, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True
    ).cuda()
    for weight in layer.parameters():
        weight.main_grad = torch.zeros(weight.shape, dtype=torch.float32, device="cuda")
        weight.grad_added_to_main_grad = False
    x = torch.randn(TOKENS * experts, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    rows = []
    for i in range(30):
        torch.cuda.synchronize()
        at = [time.perf_counter()]
        y = layer(x, [TOKENS] * experts, is_first_microbatch=i == 0)
        at.append(time.perf_counter())
        torch.cuda.synchronize()
        at.append(time.perf_counter())
        y.backward(torch.ones_like(y))
        at.append(time.perf_counter())
        torch.cuda.synchronize()
        at.append(time.perf_counter())
        rows.append((at[1] - at[0], at[2] - at[0], at[3] - at[2], at[4] - at[2]))
    medians = [1e6 * statistics.median(column) for column in zip(*rows[10:], strict=True)]
    return dict(zip(("forward_host_us", "forward_us", "backward_host_us", "backward_us"), medians, strict=True))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({n: timed(n) for n in EXPERTS}, indent=1), encoding="utf-8")
