"""Give an exported script's arguments to Megatron-LM: MEGATRON_LM=CHECKOUT python ... GPUS ARGUMENTS...

The checkout's parser and its checks, its configuration of the model, and its own builder of rank 0's model on fake
tensors under a fake process group. Of a device only what the parser asks is answered as an H100 would, and
Transformer Engine's fused rotation and permutation count as installed. Transformer Engine needs CUDA, so that the
builder takes Megatron's local layers instead of it, with the norm and core of `megatron_core.py` (its own refuse
RMSNorm and context ranks), and each expert's products for itself. DeepEP counts as installed. Where the loss has a
stage of its own its table is of no device.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, os.environ["MEGATRON_LM"])
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": sys.argv.pop(1)}
torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)  # type: ignore[assignment]

from megatron.core.models.common.embeddings import rope_utils
from megatron.core.transformer.moe import moe_utils
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = lambda *_, **__: None
for fused in ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs", "unpermute"):
    setattr(moe_utils, f"fused_{fused}", lambda *_, **__: None)


def build(arguments: Any, config: Any) -> list[torch.nn.Module]:
    """The parts of rank 0's model, one a virtual stage, as Megatron-LM's gpt_builders.py makes them."""
    import gpt_builders
    from megatron.core import parallel_state
    from megatron.core.models import backends
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import multi_latent_attention, transformer_block
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.training.global_vars import set_args
    from megatron.training.tokenizer.tokenizer import _vocab_size_with_padding
    from megatron_core import Flash, Norm

    dist.init_process_group("fake", rank=0, world_size=arguments.world_size, store=FakeStore())
    parallel_state.initialize_model_parallel(
        arguments.tensor_model_parallel_size,
        arguments.pipeline_model_parallel_size,
        arguments.virtual_pipeline_model_parallel_size,
        context_parallel_size=arguments.context_parallel_size,
        expert_model_parallel_size=arguments.expert_model_parallel_size,
        expert_tensor_parallel_size=arguments.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )
    set_args(arguments)
    arguments.padded_vocab_size = _vocab_size_with_padding(arguments.vocab_size, arguments)
    arguments.transformer_impl = config.transformer_impl = "local"
    arguments.moe_grouped_gemm = config.moe_grouped_gemm = False
    config.use_cpu_initialization, config.perform_initialization, config.fp8 = True, False, None
    config.gradient_accumulation_fusion = config.apply_rope_fusion = False
    for module in (backends, gpt_layer_specs, transformer_block):
        for name in ("FusedLayerNorm", "WrappedTorchNorm", "LNImpl", "LayerNormImpl"):
            setattr(module, name, Norm)
    backends.DotProductAttention = gpt_layer_specs.DotProductAttention = Flash
    for name in ("fused_dispatch", "hybrid_ep_dispatch", "set_deepep_num_sms"):
        setattr(token_dispatcher, name, lambda *_, **__: None)
    multi_latent_attention.TELinear = torch.nn.Linear
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    parts = range(arguments.virtual_pipeline_model_parallel_size or 1)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    virtual = len(parts) > 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        return [
            gpt_builders.gpt_builder(
                arguments, i == 0, last and i == parts[-1], vp_stage=i if virtual else None, config=config
            )
            for i in parts
        ]


if __name__ == "__main__":
    arguments = parse_args()
    validate_args(arguments, {})
    config = core_transformer_config_from_args(arguments)
    for part in build(arguments, config):
        print(f"built: {sum(p.numel() for p in part.parameters())} parameters in a part of rank 0")
    print(f"taken: {config.num_layers} layers, data parallel {arguments.data_parallel_size}")
