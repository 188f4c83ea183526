"""torchtitan's own models, sharding and checkpointing on fake tensors: what one rank runs, keeps and sends a layer.

torchtitan 0.3.0 and PyTorch 2.13.0; run by `remake.py`. What is replaced, for a CPU lacks it, and only that:
the RMS norm by one that keeps what CUDA's fused kernel keeps (its input, and a number a row; ATen has it for CUDA
alone), flex attention by PyTorch's own (both keep queries, keys, values, output and a sum a row), and the counts of
tokens that experts' ranks tell each other by balanced ones (nothing is computed that could be counted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan_tools
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore

titan_tools.device_type = "cpu"

from fused_kernels import attention, fused_norm
from record import Recorder, unseen
from summary import Seen, ends, layer
from torchtitan.config import ParallelismConfig
from torchtitan.distributed import ParallelDims, activation_checkpoint
from torchtitan.distributed import utils as titan_distributed
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common import token_dispatcher
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.deepseek_v3 import config_registry as deepseek
from torchtitan.models.gpt_oss import config_registry as gpt_oss
from torchtitan.models.llama3 import config_registry as llama
from torchtitan.models.qwen3 import config_registry as qwen
from torchtitan.protocols.module import Module

RECIPES = {
    "llama3-8b": (llama.llama3_8b, 0),
    "llama3-70b": (llama.llama3_70b, 0),
    "qwen3-0.6b": (qwen.qwen3_0_6b, 0),
    "qwen3-14b": (qwen.qwen3_14b, 0),
    "qwen3-30b-a3b": (qwen.qwen3_30b_a3b, 0),
    "deepseek-v2-lite": (deepseek.deepseek_v3_16b, 1),
    "gpt-oss-20b": (gpt_oss.gpt_oss_20b, 0),
}
"""Recipe of each model, and its first layer of those that count: DeepSeek's first is dense."""


def balanced(self: Any, local: torch.Tensor, _: Any, ep_size: int) -> tuple[torch.Tensor, list[int], list[int]]:
    """Counts of tokens where every expert gets as many: of each local expert of each rank, and by rank both ways."""
    each = self.oracle_copies // ep_size
    return local.new_empty(self.num_experts), [each] * ep_size, [each] * ep_size


def reorder(original: Any) -> Any:
    """The dispatcher's own reordering, which tells how many copies of tokens there are."""

    def wrapped(self: Any, *args: Any) -> Any:
        out = original(self, *args)
        self.oracle_copies = out[0].shape[0]
        return out

    return wrapped


class Attention(FlexAttention):
    """What flex attention keeps, by PyTorch's own attention: no compiler runs on fake tensors."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """As its base."""

    def __init__(self, config: Config) -> None:
        Module.__init__(self)

    def forward(self, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_: Any) -> Any:
        """Causal attention of (batch, length, heads, width)."""
        return attention(q_BLNH, k_BLNH, v_BLNH)[0]


def checkpointing(recompute: str) -> Any:
    """torchtitan's setting of a kind of recomputation."""
    return {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}[recompute]


def settle(asked: dict[str, Any], layers: int) -> Any:
    """A recipe with so many layers and the layout asked for."""
    recipe, first = RECIPES[asked["model"]]
    config = recipe()
    config.training.local_batch_size = asked.get("micro_batch", 1)
    config.training.seq_len = asked["seq_len"]
    config.parallelism = ParallelismConfig(
        tensor_parallel_degree=asked.get("tp", 1),
        enable_sequence_parallel=asked.get("sequence_parallel", True),
        context_parallel_degree=asked.get("cp", 1),
        expert_parallel_degree=asked.get("ep", 1),
        data_parallel_replicate_degree=asked.get("dp_replicate", 1),
        fsdp_reshard_after_forward="default" if asked.get("zero", 3) == 3 else "never",
        spmd_backend="partial_dtensor",
    )
    config.activation_checkpoint = None
    model = config.model_spec.model
    model.layers = model.layers[first : first + layers]
    for block in model.layers:
        block.attention.inner_attention = Attention.Config()
    return config


def run(asked: dict[str, Any], layers: int) -> Seen:
    """One forward and backward pass of a model of so many layers."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=asked["gpus"], store=FakeStore())
    config = settle(asked, layers)
    dims = ParallelDims.from_config(config.parallelism, asked["gpus"])
    titan_distributed.set_spmd_backend(config.parallelism.spmd_backend)
    dims.build_mesh()
    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
    model = spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=checkpointing(asked.get("recompute", "none")),
        dump_folder="",
    )
    axes = {name: mesh for name, mesh in dims._single_axis_meshes.items() if mesh.size() > 1}
    names = {mesh.get_group().group_name: name for name, mesh in axes.items()}
    with FakeTensorMode(allow_non_fake_inputs=True), titan_distributed.get_spmd_context(parallel_dims=dims)():
        model.to_empty(device="cpu")
        model.train()
        loss = config.loss.build(compile_config=config.compile)
        loss.set_lm_head(model.lm_head)
        model._skip_lm_head = True
        shape = (config.training.local_batch_size, config.training.seq_len // asked.get("cp", 1))
        tokens, labels, total = (
            torch.zeros(shape, dtype=torch.int64),
            torch.zeros(shape, dtype=torch.int64),
            torch.ones(()),
        )
        with Recorder(model, names).watching() as seen:
            hidden = model(tokens)
            living = seen.living()
            seen.phase = "loss"
            value, _ = loss(hidden, labels, total)
            seen.phase = "backward"
            value.backward()
    return Seen.of(seen, model, living, {name: mesh.size() for name, mesh in axes.items()})


def replace_parts() -> None:
    """What a CPU lacks (the module's docstring), and CUDA's name of attention in what selective checkpointing keeps."""
    torch.autograd.set_multithreading_enabled(False)
    torch.nn.functional.rms_norm = fused_norm
    dispatcher = token_dispatcher.AllToAllTokenDispatcher
    dispatcher._sync_token_count_exchange = balanced
    dispatcher._local_reorder = reorder(dispatcher._local_reorder)
    own, ours = activation_checkpoint._get_default_save_ops, torch.ops.oracle.attention.default
    activation_checkpoint._get_default_save_ops = lambda: own() | {ours}
    unseen(ShardingPropagator, "propagate_op_sharding_non_cached")


replace_parts()


def observe(asked: dict[str, Any]) -> dict[str, Any]:
    """The figures of one layer and of the ends of a configuration."""
    less, more = run(asked, 2), run(asked, 3)
    one = layer(less, more, "layers.1")
    return {"layer": one, "ends": ends(less, 2, one)}
