"""Start an exported torchtitan recipe without GPUs: python benchmarks/oracle/dry_run.py RECIPE.py GPUS.

torchtitan's own steps up to the first micro-batch, in the order of its Trainer: its checks of the settings, its fake
process group, its meshes, the model built on no device and parallelized, storage for one rank (fake), optimizer and
schedule. Left out: tokenizer and data, which the base recipe names and nobody here has.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan_tools

titan_tools.device_type = "cpu"
titan_tools.has_cuda_capability = lambda major, minor: (major, minor) == (9, 0)  # settings of a Hopper's kernels
titan_tools.get_cuda_flash_attention_impl = lambda: None  # without its packages

from torch._subclasses.fake_tensor import FakeTensorMode
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_distributed


def recipe(path: Path) -> Any:
    """The settings that the one function of a recipe's file returns."""
    spec = importlib.util.spec_from_file_location("recipe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = [f for f in vars(module).values() if callable(f) and getattr(f, "__module__", "") == "recipe"]
    return own[0]()


def start(path: Path, gpus: int) -> list[Any]:
    """The parts of the model of rank 0, with an optimizer, as torchtitan's Trainer makes them.

    Raises: whatever torchtitan raises of settings that it does not take.
    """
    config = recipe(path)
    config.comm.mode = "fake_backend"
    config.__post_init__()
    # The default backend of 0.3 asks for a PyTorch later than 2.13.
    config.parallelism.spmd_backend = "partial_dtensor"
    os.environ["NGPU"] = str(gpus)
    if dist.is_initialized():
        dist.destroy_process_group()
    world = titan_distributed.init_distributed(config.comm)
    dims = ParallelDims.from_config(config.parallelism, world)
    titan_distributed.set_spmd_backend(config.parallelism.spmd_backend)
    dims.build_mesh()
    spec, training = config.model_spec, config.training
    spec.model.update_from_config(config=config)
    batch = dims.get_mesh("batch").size() if dims.dp_enabled else 1
    assert training.global_batch_size % (training.local_batch_size * batch) == 0, "global batch size"
    with torch.device("meta"):
        model = spec.model.build()
    loss = config.loss.build(compile_config=config.compile)
    common = {
        "parallel_dims": dims, "training": training, "parallelism": config.parallelism,
        "compile_config": config.compile, "ac_config": config.activation_checkpoint, "dump_folder": "",
    }  # fmt: skip
    if dims.pp_enabled:
        _, parts, _, _ = spec.pipelining_fn(
            model, **common, device=torch.device("cpu"), model_config=spec.model, parallelize_fn=spec.parallelize_fn,
            loss_fn=loss,
        )  # fmt: skip
    else:
        parts = [spec.parallelize_fn(model, **common)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        for part in parts:
            part.to_empty(device="cpu")
        if isinstance(loss, ChunkedLossWrapper) and parts[-1].lm_head is not None:
            loss.set_lm_head(parts[-1].lm_head)
        optimizers = config.optimizer.build(model_parts=parts)
        config.lr_scheduler.build(optimizers=optimizers, training_steps=training.steps)
    return list(parts)


if __name__ == "__main__":
    for one in start(Path(sys.argv[1]), int(sys.argv[2])):
        print(f"{sum(p.numel() for p in one.parameters()):,} parameters in a part of rank 0")
