"""A model as Megatron-LM's arguments, what of it has none, and what of recomputation Megatron-Core names."""

import re
from collections.abc import Mapping
from typing import Any

from planner.exporters.megatron_limits import linear_biases
from planner.exporters.target import MODELS
from planner.models import Transformer

Arguments = list[tuple[str, ...]]
BALANCED = "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3"
"""Of a router that planner doesn't know: Megatron-LM's own default balances nothing."""


def of_family(model: Transformer) -> dict[str, str]:
    """What models.toml says of a model's family: by the type in its config.json, else, as of presets, by its name."""
    families: dict[str, dict[str, str]] = MODELS["megatron"]
    name = model.model_type or model.name.lower()
    return next((said for begin, said in families.items() if re.match(begin, name)), {})


def chosen(*rows: tuple[Any, ...]) -> Arguments:
    """The arguments of a table, values as text: a row begins with whether it is wanted."""
    return [tuple(map(str, argument)) for wanted, *argument in rows if wanted]


def model_arguments(model: Transformer, *, dropout: bool, grouped: bool, dispatcher: str = "alltoall") -> Arguments:
    """The network's size and kind, one argument with its values a tuple.

    dropout: Megatron-LM's default of 0.1. grouped: experts' products together, which it has in bf16 only.
    dispatcher: alltoall, deepep or hybridep.
    """
    m, own = model, of_family(model)
    biased = linear_biases(m)
    said = own.get("flags", "") + (f" {own.get('balance', BALANCED)}" if m.num_experts else "")
    if "sigmoid" in m.router:
        said += f" {own.get('bias', '')}"
    by_shape = chosen(
        (True, "--num-layers", m.num_layers), (True, "--hidden-size", m.hidden),
        (True, "--ffn-hidden-size", m.ffn or m.moe_ffn), (True, "--num-attention-heads", m.num_heads),
        (True, "--seq-length", m.seq_len), (True, "--max-position-embeddings", max(m.seq_len, m.max_positions)),
        (True, "--normalization", "RMSNorm" if m.rms_norm else "LayerNorm"),
        (True, "--position-embedding-type", "rope" if m.rotary else "learned_absolute" if m.max_positions else "none"),
        (m.rotary and m.rotary_base, "--rotary-base", m.rotary_base),
        (m.rotary and 0 < m.rotary_percent < 1, "--rotary-percent", m.rotary_percent),
        (m.rotary and m.rope_scaling > 1, "--use-rope-scaling"),
        (m.rotary and m.rope_scaling > 1, "--rope-scaling-factor", m.rope_scaling),
        (m.norm_epsilon, "--norm-epsilon", m.norm_epsilon), (m.clamped, "--quick-geglu"),
        (m.clamped, "--glu-linear-offset", 1.0), (m.clamped, "--activation-func-clamp-value", 7.0),
        (m.gated and not m.clamped and "geglu" not in said, "--swiglu"),
        (m.family == "nemotron" and not (m.gated or m.clamped), "--squared-relu"),
        (not biased, "--disable-bias-linear"), (not biased and m.qkv_bias, "--add-qkv-bias"),
        (not m.tied, "--untie-embeddings-and-output-weights"), (m.qk_norm or m.kv_lora_rank, "--qk-layernorm"),
        (m.qk_l2_norm, "--qk-l2-norm"),
        (m.num_window_layers, "--window-size", f"{m.window - 1},0"),  # of the tokens before
        (m.num_window_layers and _whole_every(m), "--window-attn-skip-freq", _whole_every(m)),
        (m.num_mtp_layers, "--mtp-num-layers", m.num_mtp_layers),
        (m.num_mtp_layers and m.mtp_shared, "--mtp-use-repeated-layer"),
        *((True, *argument) for argument in (*_attention(m), *_experts(m, grouped, dispatcher))),
        (not dropout, "--attention-dropout", 0.0), (not dropout, "--hidden-dropout", 0.0),
    )  # fmt: skip
    of_own = [(f"--{name}", *values) for name, *values in map(str.split, said.split("--")[1:])]
    return list({argument[0]: argument for argument in by_shape + of_own}.values())


def model_notes(model: Transformer) -> list[str]:
    """Notes on model traits without a Megatron-LM argument."""
    m, out = model, []
    if not m.rotary and not m.max_positions:
        out.append("positions: Megatron-LM has no ALiBi; exported without position embeddings")
    unknown = (
        (m.rotary and not m.rotary_base, "rotary base", "10000", "--rotary-base"),
        (
            m.rotary and not m.rope_scaling and not m.rope_type,
            "scaling of rotary positions",
            "none",
            "--rotary-scaling-factor" if m.kv_lora_rank else "--use-rope-scaling",
        ),
        (not m.norm_epsilon, "norms' epsilon", "1e-5", "--norm-epsilon"),
    )
    holds = "planner doesn't know this model's; Megatron-LM's default, {}, holds unless you add {}"
    out += [f"{what}: {holds.format(*default)}" for wanted, what, *default in unknown if wanted]
    own, (scaling, values) = of_family(m), _scaling(m)
    lost = [own["lost"]] if "lost" in own else []
    if scaling and not (scaling == "yarn" and m.kv_lora_rank):
        lost.append(f"scaling of rotary positions, {m.rope_type}")
    elif other := [f"{k} {v}" for k, v in values.items() if k not in YARN and float(v) != USUAL.get(k)]:
        lost.append(f"YaRN's {', '.join(other)}")
    if m.router.startswith("sigmoid-first") and m.top_k > 1:
        lost.append("experts' weights that don't sum to 1")
    out += [f"{what}: Megatron-LM has no argument for it; exported without" for what in lost]
    if m.num_experts and not m.router:
        out.append(f"routing: planner doesn't know this model's; exported as a softmax of the top {m.top_k}")
    if m.num_experts and "balance" not in own:
        out.append("experts' balance: planner doesn't know this model's; exported with an auxiliary loss of 0.001")
    if m.num_window_layers and _whole_every(m) is None:
        out.append(f"sliding windows in {m.num_window_layers} of {m.num_layers} layers: which of them planner doesn't "
                   "know; exported in all, give --window-attn-skip-freq a pattern of 1 and 0")  # fmt: skip
    if m.moe_latent:
        out.append("experts' latents: --moe-latent-size is newer than Megatron-Core 0.16.1")
    if m.num_mtp_layers and m.mtp_shared:
        out.append("a module used again: --mtp-use-repeated-layer is newer than Megatron-Core 0.16.1")
    if m.parallel_block:
        out.append("attention and MLP side by side (parallel_block): Megatron-LM has no argument for it; exported one "
                   "after the other")  # fmt: skip
    if m.embedding_norm:
        out.append("norm behind the embedding: Megatron-LM has no argument for it; exported without")
    if m.clamped and not own:
        out.append(
            "clamped gate: planner doesn't know where; exported as GPT-OSS's, a quick GELU at 7 with an offset of 1"
        )
    biases = {bool(m.qkv_bias), bool(m.output_bias)}
    biases |= {bool(m.mlp_bias)} if m.num_dense_layers else set()
    biases |= {bool(m.expert_bias)} if m.num_experts else set()
    if len(biases) == 2 and linear_biases(m):
        out.append("biases of some linear layers: Megatron-LM has all, none, or those of queries, keys and values; "
                   "exported with all")  # fmt: skip
    return out


def _whole_every(m: Transformer) -> int | None:
    """n where every nth layer has whole attention and the others a sliding window, 0 for none; None: some other way."""
    whole = int(m.num_layers - m.num_window_layers)
    every = int(m.num_layers) // whole if whole else 0
    return every if not whole or (every > 1 and int(m.num_layers) // every == whole) else None


YARN = {"factor": "--rotary-scaling-factor", "mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"}
"""Its values by Hugging Face's names, of latent attention alone."""
USUAL = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
"""What Megatron-Core assumes of it there, by `MLATransformerConfig`."""


def _scaling(m: Transformer) -> tuple[str, dict[str, str]]:
    """The kind of scaling of rotary positions other than LLaMA 3.1's, and its values by Hugging Face's names."""
    kind, *words = m.rope_type.split() or [""]
    return kind, dict(zip(words[::2], words[1::2], strict=True))


def _attention(m: Transformer) -> Arguments:
    kind, values = _scaling(m)
    latent, grouped = m.kv_lora_rank, not m.kv_lora_rank and m.num_kv_heads != m.num_heads
    return chosen(
        (latent, "--multi-latent-attention"),
        (latent and m.q_lora_rank, "--q-lora-rank", m.q_lora_rank),
        (latent, "--kv-lora-rank", m.kv_lora_rank),
        (latent, "--qk-head-dim", m.head_dim - m.qk_rope_head_dim),
        (latent, "--qk-pos-emb-head-dim", m.qk_rope_head_dim),
        (latent, "--v-head-dim", m.v_head_dim),
        *((latent and kind == "yarn" and key in values, name, values.get(key)) for key, name in YARN.items()),
        (not latent, "--kv-channels", m.head_dim),
        (grouped, "--group-query-attention"),
        (grouped, "--num-query-groups", m.num_kv_heads),
    )


def _experts(m: Transformer, grouped: bool, dispatcher: str) -> Arguments:
    if not m.num_experts:
        return []
    kind, *scale = m.router.split() or ["softmax"]
    dense, each = m.num_dense_layers, m.expert_layers
    layers = f"([{','.join(each)}])" if each else f"([0]*{dense}+[1]*{m.num_layers - dense})"
    return chosen(
        (True, "--num-experts", m.num_experts),
        (True, "--moe-router-topk", m.top_k),
        (m.top_k == 1 or kind == "softmax-first", "--moe-router-pre-softmax"),  # a softmax over one is 1
        ("sigmoid" in kind, "--moe-router-score-function", "sigmoid"),
        (scale, "--moe-router-topk-scaling-factor", *scale),
        (True, "--moe-ffn-hidden-size", m.moe_ffn),
        (True, "--moe-token-dispatcher-type", "alltoall" if dispatcher == "alltoall" else "flex"),
        (dispatcher == "deepep", "--moe-enable-deepep"),
        (dispatcher != "alltoall", "--moe-router-dtype", "fp32"),  # the only probabilities that it takes
        (dispatcher == "hybridep", "--moe-flex-dispatcher-backend", dispatcher),
        (grouped, "--moe-grouped-gemm"),
        (m.moe_latent, "--moe-latent-size", m.moe_latent),
        (m.num_shared_experts, "--moe-shared-expert-intermediate-size", m.shared_ffn),
        (m.expert_groups, "--moe-router-num-groups", m.expert_groups),
        (m.expert_groups, "--moe-router-group-topk", m.top_k_groups),
        (dense, "--moe-layer-freq", layers),
    )


FINE = ("layernorm", "moe_act", "mla_up_proj")  # what "fine" repeats, where a model has it


def modules(mode: str, model: Transformer) -> list[str]:
    """The modules that a mode recomputes; none for none and full."""
    if mode == "selective":
        return ["core_attn"]
    has = {"moe_act": model.num_experts > 0, "mla_up_proj": model.kv_lora_rank > 0}
    return [name for name in FINE if has.get(name, True)] if mode == "fine" else []


def recompute_method(row: Mapping[str, Any]) -> tuple[str, int]:
    """The method and number of layers of full recomputation: block, the first ones of each virtual stage; or uniform, a
    layer at a time."""
    layers = row["recompute_layers"]
    return ("block", layers) if layers else ("uniform", 1)
