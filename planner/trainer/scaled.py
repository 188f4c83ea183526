"""A plan's model and batch made small enough for the machine at hand, the layout and the schedule kept."""

from dataclasses import replace
from math import gcd, lcm

from planner.base.errors import UnknownNameError
from planner.models import Transformer
from planner.models.possible import check
from planner.trainer.text import VOCAB

# Name: hidden size, layers, sequence length, aimed at.
SCALES = {"tiny": (32, 2, 32), "small": (128, 2, 128), "medium": (256, 4, 256), "large": (512, 8, 512)}


def scaled_model(
    model: Transformer, scale: str, tp: int, stages: int, slices: int, heads_split: int = 1, ep: int = 1
) -> Transformer:
    """A small model of the same kind on bytes: same norms, positions, biases, gating, tying and ratios of sizes.

    Layers are a multiple of the stages, the inner size of tp, the sequence of slices and tp. Windows keep their shares
    of both. Key-value heads are a multiple of tp times the context ranks that exchange heads. Of experts there are 8 at
    most, two a group, or ep; with dense layers before them one of the layers is dense. Shared experts are a multiple of
    tp wide.

    Raises UnknownNameError if no scale has that name.
    """
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)
    hidden, layers, seq_len = SCALES[scale]
    ratio = max(model.num_heads // model.num_kv_heads, 1)
    least = tp * heads_split
    kv_heads = least * max(1, 4 // (least * ratio))
    heads = kv_heads * ratio
    head_dim = max(8, hidden // heads // 2 * 2)
    inner = max(model.ffn, 1) / model.hidden
    step = 8 * tp // gcd(8, tp)
    ffn = max(1, round(hidden * inner / step)) * step
    grain = slices * tp
    seq_len = -(-seq_len // grain) * grain
    layers = -(-layers // stages) * stages
    vocab = -(-VOCAB // tp) * tp
    groups = max(model.expert_groups, 1)
    shared_by = lcm(ep, groups)
    experts = -(-min(model.num_experts, max(8, 2 * groups)) // shared_by) * shared_by if model.num_experts else 0
    moe_ffn = max(8, round(hidden * model.moe_ffn / model.hidden))
    return check(
        replace(
            model,
            name=f"{model.name} ({scale})",
            num_layers=layers,
            num_window_layers=-(-model.num_window_layers * layers // model.num_layers),
            window=-(-model.window * seq_len // model.seq_len),
            num_dense_layers=layers if not model.num_experts else min(model.num_dense_layers, 1),
            num_experts=experts,
            top_k=min(model.top_k, experts // groups * (model.top_k_groups or 1)),
            moe_ffn=(-(-moe_ffn // tp) * tp if model.num_shared_experts else moe_ffn) if experts else 0,
            hidden=hidden,
            ffn=ffn,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim // 2 if model.kv_lora_rank else 0,
            qk_rope_head_dim=head_dim // 4 * 2 if model.kv_lora_rank else 0,
            q_lora_rank=-(-model.q_lora_rank * hidden // model.hidden),
            kv_lora_rank=-(-model.kv_lora_rank * hidden // model.hidden),
            vocab=vocab,
            seq_len=seq_len,
            max_positions=seq_len if model.max_positions else 0,
        )
    )
