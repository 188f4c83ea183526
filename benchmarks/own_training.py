"""Hugging Face's models trained by PyTorch's own parallel parts on processors, for `own_machine.py`, under torchrun.

    torchrun --nproc-per-node 2 benchmarks/own_training.py CASES.json RESULT.json          # step times
    torchrun --nproc-per-node 2 benchmarks/own_training.py CASES.json RESULT.json --memory # peak bytes

The models are transformers' (Llama, Qwen2, GPT-2), the rest is torch's: FSDP2 (`fully_shard`),
DistributedDataParallel, tensor-parallel plans (`parallelize_module`), `torch.distributed.pipelining`, fused AdamW,
clipping. Only their joining is written here, as torchtitan joins them (distributed/fsdp.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import parallel as tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Stage(nn.Module):
    """Some layers of a transformers model, with its embedding on the first stage, norm and head on the last."""

    def __init__(self, model: Any, layers: list[int], first: bool, last: bool) -> None:
        super().__init__()
        body = model.base_model
        self.gpt2 = model.config.model_type == "gpt2"
        every = body.h if self.gpt2 else body.layers
        self.layers = nn.ModuleList([every[i] for i in layers])
        self.embedding = (body.wte if self.gpt2 else body.embed_tokens) if first else None
        self.positions = body.wpe if self.gpt2 and first else None
        self.rotary = None if self.gpt2 else body.rotary_emb
        self.norm = (body.ln_f if self.gpt2 else body.norm) if last else None
        self.head = model.lm_head if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(at)
        more = {} if self.rotary is None else {"position_embeddings": self.rotary(x, at)}
        for layer in self.layers:
            x = layer(x, attention_mask=None, **more)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def model_of(case: dict[str, Any]) -> Any:
    """The transformers model of a case, from its configuration alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(case["config"])
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config), attn_implementation="sdpa"
    )


def tensor_parallel(model: Any, mesh: DeviceMesh) -> None:
    """torchtitan's plan without sequence parallelism: a block's input is one DTensor, all logits are gathered."""
    for layer in model.base_model.layers:
        plan: dict[str, Any] = {
            "self_attn": tensor.PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Replicate()},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": tensor.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        }
        plan |= {f"self_attn.{name}_proj": tensor.ColwiseParallel() for name in "qkv"}
        plan |= {f"mlp.{name}_proj": tensor.ColwiseParallel() for name in ("gate", "up")}
        plan |= {name: tensor.RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
        tensor.parallelize_module(layer, mesh, plan)
    ends = {
        "model.embed_tokens": tensor.RowwiseParallel(input_layouts=Replicate()),
        "lm_head": tensor.ColwiseParallel(output_layouts=Replicate()),
    }
    tensor.parallelize_module(model, mesh, ends)


def shard(stage: Stage, mesh: DeviceMesh, zero: int, **policy: Any) -> None:
    """torchtitan's units: embedding, each layer, last norm with head; ZeRO 1, 2 keep parameters to the backward pass.

    Under a pipeline PyTorch's stages gather once a step and reduce once, after the last micro-batch: ZeRO 1.
    """
    again = zero == 3
    if stage.embedding is not None:
        fully_shard(stage.embedding, mesh=mesh, reshard_after_forward=again, **policy)
    for layer in stage.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=again, **policy)
    if stage.norm is not None and stage.head is not None:
        fully_shard([stage.norm, stage.head], mesh=mesh, reshard_after_forward=False, **policy)
    fully_shard(stage, mesh=mesh, **policy)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, as transformers' loss/loss_utils.py takes it of logits in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Run:
    """One case's model, optimizer and schedule on this rank."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, (pp, dp, tp) = case, (case["pp"], case["dp"], case["tp"])
        mesh = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp")) if WORLD > 1 else None
        model = model_of(case)
        if case["recompute"] == "full":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        if mesh is not None and tp > 1:
            tensor_parallel(model, mesh["tp"])
        chunks, n = pp * case["virtual_stages"], case["config"].get("num_hidden_layers") or case["config"]["n_layer"]
        here = [c for c in range(chunks) if c % pp == (0 if mesh is None else mesh.get_local_rank("pp"))]
        each = n // chunks
        stages = [Stage(model, list(range(c * each, (c + 1) * each)), c == 0, c == chunks - 1) for c in here]
        del model
        self.parts: list[Any] = list(stages)
        if mesh is not None and dp > 1 and case["zero"] > 0:
            for stage in stages:
                shard(stage, mesh["dp"], case["zero"])
        elif mesh is not None and dp > 1:
            self.parts = [
                DistributedDataParallel(s, process_group=mesh.get_group("dp"), gradient_as_bucket_view=True)
                for s in stages
            ]
        kinds: dict[Any, list[Any]] = {}
        for part in self.parts:
            for p in part.parameters():
                kinds.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
        self.kinds = list(kinds.values())
        self.optimizer = torch.optim.AdamW([{"params": some} for some in self.kinds], lr=1e-4, fused=True)
        self.schedule, self.group = None, None if mesh is None else mesh.get_group("pp")
        self.first, self.last = 0 in here, chunks - 1 in here
        if pp > 1:
            ends = [
                pipelining.PipelineStage(part, c, chunks, torch.device("cpu"), group=self.group)
                for part, c in zip(self.parts, here, strict=True)
            ]
            one = SCHEDULES[case["schedule"]]
            given = ends if case["virtual_stages"] > 1 else ends[0]
            self.schedule = one(given, n_microbatches=case["micro_batches"], loss_fn=loss_of)  # type: ignore[arg-type]
        shape = (case["micro_batch"] * case["micro_batches"], case["seq_len"])
        self.tokens = torch.randint(0, case["config"]["vocab_size"], shape)

    def step(self) -> None:
        """Forward and backward of all micro-batches, clipping, update."""
        if self.schedule is not None:
            self.schedule.step(
                *([self.tokens] if self.first else []), target=self.tokens if self.last else None, return_outputs=False
            )
        else:
            m, (part,) = self.case["micro_batches"], self.parts
            for i, tokens in enumerate(self.tokens.chunk(m)):
                waits = part.no_sync() if isinstance(part, DistributedDataParallel) and i < m - 1 else nullcontext()
                with waits:
                    (loss_of(part(tokens), tokens) / m).backward()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clip(self) -> None:
        """To a global norm of 1, as torchtitan does where parameters lie on several meshes."""
        grads = [[p.grad for p in some if p.grad is not None] for some in self.kinds]
        norms = [nn.utils.get_total_norm(some) for some in grads]
        total = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).square().sum()
        if self.case["pp"] > 1:
            dist.all_reduce(total, group=self.group)
        for some in self.kinds:
            nn.utils.clip_grads_with_norm_(some, 1.0, total.sqrt())


def together() -> None:
    """Until all ranks are here."""
    if WORLD > 1:
        dist.barrier()


def step_seconds(case: dict[str, Any], steps: int) -> list[float]:
    """Seconds of each step after a first one, which infers shapes and makes the optimizer's state."""
    run, out = Run(case), []
    run.step()
    together()
    for _ in range(steps):
        start = time.perf_counter()
        run.step()
        together()
        out.append(time.perf_counter() - start)
    return out


class Storages(TorchDispatchMode):
    """Bytes of all storages alive, by what the operations return; a storage counts until nothing refers to it.

    torch.profiler would miss what gloo's threads free, and a processor's allocator keeps no statistics.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0
        self.plain_resize = torch.UntypedStorage.resize_

    def size(self, key: int, size: int) -> None:
        """A storage has so many bytes from here on."""
        self.now += size - self.alive.get(key, 0)
        self.alive[key] = size
        self.peak = max(self.peak, self.now)

    def seen(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, once; not those without bytes, on which DTensor tries an operator's shapes."""
        if storage.device.type == "meta":
            return
        key = storage._cdata
        if key not in self.alive:
            weakref.finalize(storage, lambda: self.__dict__.update(now=self.now - self.alive.pop(key)))
            self.size(key, storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # its parts come here on their own
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, lambda t: self.seen(t.untyped_storage()), out)
        return out

    def __enter__(self) -> Storages:
        def resized(storage: Any, size: int) -> Any:
            out = self.plain_resize(storage, size)
            self.seen(storage)
            self.size(storage._cdata, size)
            return out

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign,assignment]
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self.plain_resize  # type: ignore[method-assign]
        super().__exit__(*error)


def peak_bytes(case: dict[str, Any]) -> int:
    """Most bytes alive at once in two steps, the fullest rank's; not what a whole model takes before it is cut."""
    with Storages() as storages:
        run = Run(case)
        gc.collect()
        storages.peak = storages.now
        run.step()
        run.step()
        peak = storages.peak
    del run
    every = [peak]
    if WORLD > 1:
        every = [0] * WORLD
        dist.all_gather_object(every, peak)
    return max(every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("cases", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure peak memory, not time")
    given = parser.parse_args()
    torch.manual_seed(0)
    if WORLD > 1:
        dist.init_process_group("gloo")
    found = {}
    for name, case in json.loads(given.cases.read_text(encoding="utf-8")).items():
        found[name] = peak_bytes(case) if given.memory else step_seconds(case, given.steps)
        gc.collect()
        if RANK == 0:
            print(name, found[name], flush=True)
    if RANK == 0:
        given.result.write_text(json.dumps(found), encoding="utf-8")
    together()
    os._exit(0)  # gloo's threads now and then abort a process that ends by itself


if __name__ == "__main__":
    main()
