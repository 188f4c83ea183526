"""Give an exported script's arguments to Megatron-LM's own parser: MEGATRON_LM=CHECKOUT python ... GPUS ARGUMENTS...

The checkout's parser and its checks, then its configuration of the model; of a device only what the parser asks is
answered as an H100 would, and Transformer Engine's fused rotation counts as installed.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch

sys.path.insert(0, os.environ["MEGATRON_LM"])
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": sys.argv.pop(1)}
torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)  # type: ignore[assignment]

from megatron.core.models.common.embeddings import rope_utils
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = lambda *_, **__: None

if __name__ == "__main__":
    arguments = parse_args()
    validate_args(arguments, {})
    config = core_transformer_config_from_args(arguments)
    print(f"taken: {config.num_layers} layers, data parallel {arguments.data_parallel_size}")
