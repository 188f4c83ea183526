"""Megatron-Core's own GPT model with its local layers on fake tensors: what one rank runs, keeps and sends a layer.

megatron-core 0.16.1 and PyTorch 2.13.0; run by `remake.py`. Replaced, for a CPU lacks it: the norm by one that keeps
what a fused kernel keeps (its local norm refuses sequence parallelism, and Apex is for CUDA), and where flash
attention is asked for the unfused core by one that keeps what flash attention keeps. The current device and the
tracker of random states ask for CUDA. Experts' tokens are counted and chosen by values, of which fake tensors have
none: here every expert gets as many.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]

from fused_kernels import FusedNorm, attention
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import (
    GPTModel,
    gpt_layer_specs,
)
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import transformer_block
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from megatron.core.transformer.transformer_config import TransformerConfig
from record import Recorder
from summary import Seen, ends, layer

SIZES = {
    "llama3-8b": {"hidden": 4096, "heads": 32, "kv": 8, "width": 128, "ffn": 14336, "vocab": 128256},
    "llama2-13b": {"hidden": 5120, "heads": 40, "kv": 40, "width": 128, "ffn": 13824, "vocab": 32000},
    "mixtral-8x7b": {
        "hidden": 4096, "heads": 32, "kv": 8, "width": 128, "ffn": 14336, "vocab": 32000, "experts": 8, "top_k": 2,
    },
    "qwen3-30b-a3b": {
        "hidden": 2048, "heads": 32, "kv": 4, "width": 128, "ffn": 768, "vocab": 151936, "experts": 128, "top_k": 8,
        "qk_norm": True,
    },
}  # fmt: skip
"""The models by their sizes; ffn: of a dense MLP or of an expert."""


class Norm(torch.nn.Module):
    """A norm of one weight that keeps its input and a number a row."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm's output, in shape alone."""
        return FusedNorm.apply(x, self.weight)


class Flash(torch.nn.Module):
    """An attention core that keeps what flash attention keeps; (length, batch, heads, width), as Megatron has it."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """The heads' outputs side by side."""
        out, _sums = attention(*(x.transpose(0, 1) for x in (query, key, value)))
        return out.transpose(0, 1).flatten(2)


class Tracker:
    """A tracker of random states without states: nothing draws."""

    def fork(self, *_: Any) -> Any:
        """No change."""
        return nullcontext()

    def get_states(self) -> dict[str, Any]:
        """None."""
        return {}

    def set_states(self, _: Any) -> None:
        """Nothing to set."""


class Stream:
    """A stream that orders nothing."""

    wait_stream = record_event = wait_event = synchronize = lambda self, *_: self


torch.cuda.current_stream = lambda *_: Stream()  # type: ignore[assignment]
MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = Stream()
moe_utils.te_general_gemm = None

for module in (megatron_random, tensor_parallel):
    module.get_cuda_rng_tracker = lambda *_, **__: Tracker()  # type: ignore[attr-defined]
megatron_random._get_all_rng_states = lambda *_: ()
megatron_random._set_all_rng_states = lambda *_: None
megatron_random._set_cuda_rng_state = lambda *_, **__: None
torch.cuda.get_rng_state = lambda *_: torch.empty(0)  # type: ignore[assignment]


class Counts(list[int]):
    """Whole numbers on the host, with what is asked of a tensor of them."""

    def tolist(self) -> list[int]:
        """The same."""
        return self

    def ravel(self) -> Counts:
        """The same."""
        return self

    T = property(ravel)


def balanced(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """Megatron's copy of its counts to the host, where every rank and expert gets as many tokens."""
    if point == self.cuda_dtoh_point:
        each = self.num_out_tokens // self.ep_size
        self.input_splits = self.output_splits = [each] * self.ep_size
        self.sort_input_by_local_experts = self.restore_output_by_local_experts = Counts(range(self.num_experts))
        self.num_global_tokens_per_local_expert = Counts([each // self.num_local_experts] * self.num_experts)
    if tokens_per_expert is None:
        return None
    return Counts([self.num_out_tokens // self.num_local_experts] * self.num_local_experts)


def selected(asked: dict[str, Any]) -> Any:
    """`Tensor.masked_select` where a mask chooses a token's experts: as many of each as the router does."""
    copies = asked["seq_len"] * asked.get("micro_batch", 1) * SIZES[asked["model"]].get("top_k", 1)

    def masked_select(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return x.flatten()[:copies].clone() if x.requires_grad else x.new_empty(copies)

    return masked_select


def configuration(asked: dict[str, Any], layers: int) -> TransformerConfig:
    """Megatron's configuration of a model of so many layers."""
    sizes = SIZES[asked["model"]]
    recompute = asked.get("recompute", "none")
    experts = {}
    if "experts" in sizes:
        experts = {
            "num_moe_experts": sizes["experts"], "moe_router_topk": sizes["top_k"], "moe_ffn_hidden_size": sizes["ffn"],
            "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": False,
            "moe_router_load_balancing_type": "none", "moe_permute_fusion": False,
        }  # fmt: skip
    return TransformerConfig(
        num_layers=layers, hidden_size=sizes["hidden"], num_attention_heads=sizes["heads"], kv_channels=sizes["width"],
        num_query_groups=sizes["kv"], ffn_hidden_size=sizes["ffn"], qk_layernorm=sizes.get("qk_norm", False),
        tensor_model_parallel_size=asked.get("tp", 1),
        sequence_parallel=asked.get("sequence_parallel", asked.get("tp", 1) > 1),
        context_parallel_size=asked.get("cp", 1), expert_model_parallel_size=asked.get("ep", 1), bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, use_cpu_initialization=True,
        perform_initialization=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, normalization="RMSNorm", bias_activation_fusion=asked.get("fused_gate", True),
        masked_softmax_fusion=False, attention_dropout=0.0, hidden_dropout=0.0, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, attention_softmax_in_fp32=True, bias_dropout_fusion=False,
        recompute_granularity=None if recompute == "none" else recompute,
        recompute_method="uniform" if recompute == "full" else None,
        recompute_num_layers=1 if recompute == "full" else None,
        **experts,
    )  # fmt: skip


def run(asked: dict[str, Any], layers: int) -> Seen:
    """One forward and backward pass of a model of so many layers."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=asked["gpus"], store=FakeStore())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=asked.get("tp", 1),
        context_parallel_size=asked.get("cp", 1),
        expert_model_parallel_size=asked.get("ep", 1),
        expert_tensor_parallel_size=asked.get("etp"),
        create_gloo_process_groups=False,
    )
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = balanced
    torch.Tensor.masked_select = selected(asked)  # type: ignore[method-assign]
    config, sizes = configuration(asked, layers), SIZES[asked["model"]]
    groups = {
        "tp": parallel_state.get_tensor_model_parallel_group(), "cp": parallel_state.get_context_parallel_group(),
        "ep": parallel_state.get_expert_model_parallel_group(),
        "etp": parallel_state.get_expert_tensor_parallel_group(),
    }  # fmt: skip
    names = {group.group_name: name for name, group in reversed(groups.items()) if group.size() > 1}
    gpt_layer_specs.LNImpl = transformer_block.LayerNormImpl = Norm
    spec = gpt_layer_specs.get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    )
    inside = spec.submodules
    inside.input_layernorm = inside.pre_mlp_layernorm = Norm
    if config.qk_layernorm:
        inside.self_attention.submodules.q_layernorm = inside.self_attention.submodules.k_layernorm = Norm
    if asked.get("attention", "flash2") != "unfused":
        inside.self_attention.submodules.core_attention = Flash
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = GPTModel(
            config=config, transformer_layer_spec=spec, vocab_size=sizes["vocab"],
            max_sequence_length=asked["seq_len"], position_embedding_type="rope", parallel_output=True,
            share_embeddings_and_output_weights=False,
        )  # fmt: skip
        length = asked["seq_len"] // asked.get("cp", 1)
        tokens = torch.zeros(asked.get("micro_batch", 1), length, dtype=torch.int64)
        mask = torch.ones(1, 1, length, length, dtype=torch.bool)
        with Recorder(model, names).watching() as seen:
            loss = model(tokens, tokens, mask, labels=tokens)
            living = seen.living()
            seen.phase = "backward"
            loss.sum().backward()
    return Seen.of(seen, model, living, {})


def observe(asked: dict[str, Any]) -> dict[str, Any]:
    """The figures of one layer and of the ends of a configuration."""
    less, more = run(asked, 2), run(asked, 3)
    one = layer(less, more, "decoder.layers.1")
    return {"layer": one, "ends": ends(less, 2, one)}
