"""Hugging Face transformers' own models under DeepSpeed's ZeRO on fake tensors: what one rank keeps and sends a layer.

DeepSpeed 0.19.8, transformers 5.24 and PyTorch 2.13.0; run by `remake.py`. The engine is `deepspeed.initialize`'s, with
a configuration that leaves all but the stage and bf16 to its defaults; it is watched in the last micro-batch of a step.
Attention and norms are those of `transformers_fsdp`. Left out is a comparison of the modules' order with other ranks.
"""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partitioned_param_coordinator
from record import Recorder
from summary import Seen, ends, layer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import _world
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers_fsdp import made, watched

partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda *_: None


def run(asked: dict[str, Any], layers: int) -> Seen:
    """One forward and backward pass of a model of so many layers."""
    if not dist.is_initialized():  # DeepSpeed keeps its groups for as long as Python runs
        dist.init_process_group("fake", rank=0, world_size=asked["gpus"], store=FakeStore())
    torch.autograd.set_multithreading_enabled(False)
    settings = {
        "train_micro_batch_size_per_gpu": asked.get("micro_batch", 1),
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": asked["zero"]},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = made(asked, layers, torch.bfloat16)
        parameters = sum(p.numel() for p in model.parameters())
        model.to = lambda *_, **__: model  # type: ignore[method-assign]  # it is there, and fake parameters can't move
        engine, *_ = deepspeed.initialize(model=model, config=settings, dist_init_required=False)
        model.train()
        tokens = torch.zeros((asked.get("micro_batch", 1), asked["seq_len"]), dtype=torch.int64)
        # ZeRO 3 learns in a first pass when each parameter is next used, and keeps from then on what is used soon.
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()  # no update yet: it counts micro-batches
        # Without pipelines and tensor ranks every group of DeepSpeed's is of all ranks.
        seen = Recorder(model, dict.fromkeys(_world.pg_names.values(), "fsdp"))
        living = watched(seen, model, lambda: engine(input_ids=tokens, labels=tokens).loss, engine.backward)
    found = Seen.of(seen, model, living, {})
    found.parameters = parameters
    return found


def observe(asked: dict[str, Any]) -> dict[str, Any]:
    """The figures of one layer and of the ends of a configuration."""
    layers = 8 if asked["zero"] == 3 else 2  # so many that the first is not used again within 1e9 parameters
    less, more = run(asked, layers), run(asked, layers + 1)
    one = layer(less, more, "model.layers.1")
    return {"layer": one, "ends": ends(less, layers, one)}
