"""Hugging Face transformers' own models under FSDP2 on fake tensors: what one rank runs, keeps and sends a layer.

transformers 5.24 and PyTorch 2.13.0; run by `remake.py`. Replaced, for a CPU lacks it: attention, by one that keeps
what flash attention keeps. Its norms are its own, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fused_kernels import attention
from record import Recorder
from summary import Living, Seen, ends, layer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CONFIGURATIONS = {
    "llama3-8b": LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    ),
    "llama2-13b": LlamaConfig(
        hidden_size=5120, intermediate_size=13824, num_attention_heads=40, num_key_value_heads=40, vocab_size=32000
    ),
    "qwen3-14b": Qwen3Config(
        hidden_size=5120, intermediate_size=17408, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        vocab_size=151936,
    ),
}  # fmt: skip
"""The models by their sizes, as their own files have them."""


def flash(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """transformers' interface to an attention kernel: heads before the length in, behind it out."""
    out, _sums = attention(*(x.transpose(1, 2) for x in (query, key, value)))
    return out, None


ALL_ATTENTION_FUNCTIONS.register("oracle", flash)


def made(asked: dict[str, Any], layers: int, dtype: torch.dtype) -> Any:
    """The model of so many layers, with checkpointing as asked."""
    config = CONFIGURATIONS[asked["model"]]
    config.num_hidden_layers, config.tie_word_embeddings, config.use_cache = layers, False, False
    config._attn_implementation = "oracle"
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if asked.get("recompute") == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def watched(seen: Recorder, model: Any, forward: Callable[[], Any], backward: Callable[[Any], Any]) -> Living:
    """What lives after a model's layers and before its loss, as a recorder sees both passes.

    forward: gives the loss, which backward takes.
    """
    living: Living = []

    def between(*_: Any) -> None:
        living.extend(seen.living())
        seen.phase = "loss"

    model.model.register_forward_hook(between)
    with seen.watching():
        value = forward()
        seen.phase = "backward"
        backward(value)
    return living


def run(asked: dict[str, Any], layers: int) -> Seen:
    """One forward and backward pass of a model of so many layers."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=asked["gpus"], store=FakeStore())
    torch.autograd.set_multithreading_enabled(False)
    with torch.device("meta"):
        model = made(asked, layers, torch.float32)
    mesh = init_device_mesh("cpu", (asked["gpus"],), mesh_dim_names=("fsdp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    again = asked.get("zero", 3) == 3
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    names = {mesh.get_group().group_name: "fsdp"}
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.train()
        tokens = torch.zeros((asked.get("micro_batch", 1), asked["seq_len"]), dtype=torch.int64)
        seen = Recorder(model, names)
        living = watched(seen, model, lambda: model(input_ids=tokens, labels=tokens).loss, torch.Tensor.backward)
    return Seen.of(seen, model, living, {})


def observe(asked: dict[str, Any]) -> dict[str, Any]:
    """The figures of one layer and of the ends of a configuration."""
    less, more = run(asked, 2), run(asked, 3)
    one = layer(less, more, "model.layers.1")
    return {"layer": one, "ends": ends(less, 2, one)}
