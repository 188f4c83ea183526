"""The model that Megatron-LM's arguments describe."""

import ast
import re
from dataclasses import replace
from typing import Any

from planner.base.errors import InputError, shown
from planner.exporters.megatron_model import YARN
from planner.imports.arguments import Arguments
from planner.models import Transformer
from planner.models.from_shape import from_pattern
from planner.models.possible import check

ASSUMED_VOCAB = 128_000
MODULES = ("*E", "*-")
"""Layers of a hybrid's module of multi-token prediction: attention, then the MLP."""
MOST_LAYERS = 100_000
EVERY = re.compile(r"[1-9][0-9]{0,5}")


def model_of(a: Arguments, name: str, vocab: int | None) -> tuple[Transformer, list[str]]:
    """The model, and what was assumed of it. vocab: given by the user, where only the tokenizer knows it.

    Raises InputError if an argument is missing, of the wrong kind, or contradicts another.
    """
    # A hybrid's layer pattern says how many there are.
    layers = (a.number if "hybrid-layer-pattern" in a else a.needed)("num-layers")
    hidden, heads = a.needed("hidden-size"), a.needed("num-attention-heads")
    seq_len = a.needed("seq-length")
    notes: list[str] = []
    gated, biased = "swiglu" in a or "quick-geglu" in a, "disable-bias-linear" not in a
    # Megatron-LM's own defaults: 4 h, or two thirds of it in steps of 64 where three matrices take it.
    ffn = a.number("ffn-hidden-size") or (int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden)
    experts = _experts(a, ffn)
    kinds, modules = _kinds(a, layers, hidden, experts["num_experts"]), _modules(a)
    model = Transformer(
        name=name, family=_family(a, kinds, experts["num_experts"], gated), hidden=hidden,
        ffn=ffn if kinds["num_dense_layers"] else 0, vocab=_vocab(a, vocab, notes), seq_len=seq_len, gated=gated,
        rms_norm=a.text("normalization", "LayerNorm") == "RMSNorm", tied="untie-embeddings-and-output-weights" not in a,
        qkv_bias=biased or "add-qkv-bias" in a, output_bias=biased, mlp_bias=biased and kinds["num_dense_layers"] > 0,
        expert_bias=biased and experts["num_experts"] > 0, clamped=gated and "activation-func-clamp-value" in a,
        qk_norm="qk-layernorm" in a and "multi-latent-attention" not in a,  # latents' norms are counted with them
        num_mtp_layers=modules, mtp_shared=modules > 0 and "mtp-use-repeated-layer" in a,
        qk_l2_norm="qk-l2-norm" in a, norm_epsilon=a.real("norm-epsilon", 1e-5, 1), **_positions(a, seq_len),
        **_attention(a, hidden, heads), **experts, **kinds,
    )  # fmt: skip
    window, layers = _windows(a, model.num_attention_layers)
    return check(replace(model, window=window, num_window_layers=layers)), notes


def _family(a: Arguments, kinds: dict[str, Any], experts: int, gated: bool) -> str:
    if "num_ssm_layers" in kinds:
        return "hybrid"
    if experts:
        return "moe"
    return "nemotron" if "squared-relu" in a else "llama" if gated else "gpt"


def _positions(a: Arguments, seq_len: int) -> dict[str, Any]:
    """How tokens know where they are: by a learned table, by rotation, or by neither; Megatron-LM's own defaults."""
    rotary = a.text("position-embedding-type") == "rope" or "use-rotary-position-embeddings" in a
    learned = not rotary and a.text("position-embedding-type", "learned_absolute") == "learned_absolute"
    positions = (a.number("max-position-embeddings") or seq_len) if learned else 0
    turned = {
        "rotary_base": a.number("rotary-base", 10_000), "rotary_percent": a.real("rotary-percent", 0.0, 1),
        "rope_scaling": int(a.real("rope-scaling-factor", 8.0, 1e6)) if "use-rope-scaling" in a else 1,
    }  # fmt: skip
    return {"rotary": rotary, "max_positions": positions, "dropout": learned, **(turned if rotary else {})}


def _yarn(a: Arguments) -> str:
    """The scaling of latent attention's positions that is asked for, in Hugging Face's words."""
    values = {key: a.real(name.removeprefix("--"), 1.0, 1e6) for key, name in YARN.items() if name[2:] in a}
    return " ".join(["yarn", *(f"{key} {value:g}" for key, value in values.items())]) if values else ""


def _attention(a: Arguments, hidden: int, heads: int) -> dict[str, Any]:
    """Heads and their sizes, of latent attention or of the usual one."""
    if "multi-latent-attention" in a:
        rope_dim = a.number("qk-pos-emb-head-dim", 64) or 0
        return {
            "num_heads": heads,
            "num_kv_heads": heads,
            "head_dim": (a.number("qk-head-dim", 128) or 0) + rope_dim,
            "q_lora_rank": a.number("q-lora-rank", 0) or 0,
            "kv_lora_rank": a.number("kv-lora-rank", 32) or 0,
            "qk_rope_head_dim": rope_dim,
            "v_head_dim": a.number("v-head-dim", 128) or 0,
            "rope_type": _yarn(a),
        }
    if a.number("kv-channels") is None and hidden % heads:
        raise InputError(
            f"--hidden-size {hidden} isn't a multiple of --num-attention-heads {heads}; give --kv-channels"
        )
    return {
        "num_heads": heads,
        "num_kv_heads": a.number("num-query-groups", 1) if "group-query-attention" in a else heads,
        "head_dim": a.number("kv-channels", hidden // heads),
    }


def _experts(a: Arguments, ffn: int) -> dict[str, Any]:
    """The experts' number and sizes, all 0 in a dense model."""
    experts = a.number("num-experts", 0, least=0) or 0
    moe_ffn = (a.number("moe-ffn-hidden-size") or ffn) if experts else 0
    shared = a.number("moe-shared-expert-intermediate-size", 0, least=0) or 0
    sizes = {
        "top_k": a.number("moe-router-topk", 2),
        "moe_latent": a.number("moe-latent-size", 0, least=0),
        "expert_groups": a.number("moe-router-num-groups", 0),
        "top_k_groups": a.number("moe-router-group-topk", 0),
    }
    kind = "sigmoid" if a.text("moe-router-score-function") == "sigmoid" else "softmax"
    one = sizes["top_k"] == 1
    # A softmax over one is 1; Megatron-LM divides sigmoids by their sum where there are several.
    first = one if kind == "sigmoid" else not one and "moe-router-pre-softmax" in a
    scale = a.text("moe-router-topk-scaling-factor")
    router = kind + "-first" * first + (f" {scale}" if scale else "")
    of_experts = {name: (size or 0) if experts else 0 for name, size in sizes.items()}
    return {"num_experts": experts, "num_shared_experts": shared / max(moe_ffn, 1), "moe_ffn": moe_ffn, **of_experts,
            "router": router if experts else ""}  # fmt: skip


def _windows(a: Arguments, attention: int) -> tuple[int, int]:
    """The sliding window, the token itself in it, and how many layers with attention have one: all but every nth, or
    by a pattern of 1 and 0."""
    size = a.text("window-size")
    if size is None:
        return 0, 0
    before = re.fullmatch(r"\(?([0-9]{1,9}),[0-9]{1,9}\)?", size)
    if before is None:
        raise InputError(f"--window-size is {shown(size)}; allowed: tokens before and after, such as 127,0")
    text = a.text("window-attn-skip-freq")
    layers = attention
    if text is not None and EVERY.fullmatch(text):
        layers -= attention // int(text)
    elif text is not None:
        layers = _by_layer("window-attn-skip-freq", text, attention, f"([1]*{attention - 1}+[0]*1)").count(1)
    return (int(before[1]) + 1, layers) if layers else (0, 0)


def _kinds(a: Arguments, layers: int | None, hidden: int, experts: int) -> dict[str, Any]:
    """How many layers of each kind, and the sizes of a hybrid's state-space layers; Megatron-LM's defaults."""
    name, pattern = "--hybrid-override-pattern", a.text("hybrid-override-pattern")
    if pattern is None and (text := a.text("hybrid-layer-pattern")) is not None:
        name, pattern = "--hybrid-layer-pattern", text.split("/")[0]
    if pattern is None:
        if "is-hybrid-model" in a:
            raise InputError("--hybrid-override-pattern is missing; a hybrid model needs it")
        layers = a.needed("num-layers")
        return {"num_layers": layers, **(_expert_layers(a, layers) if experts else {"num_dense_layers": layers})}
    try:
        kinds = from_pattern(pattern)
    except InputError as error:
        raise InputError(f"{name.removesuffix('pattern')}{error}") from None
    if layers is not None and kinds["num_layers"] != layers:
        raise InputError(f"{name} has {kinds['num_layers']} letters, --num-layers is {layers}")
    head_dim = a.number("mamba-head-dim", 64) or 0
    return kinds | {
        "ssm_heads": a.number("mamba-num-heads", max(2 * hidden // head_dim, 1)) or 0,
        "ssm_head_dim": head_dim,
        "ssm_groups": a.number("mamba-num-groups", 8) or 0,
        "ssm_state": a.number("mamba-state-dim", 128) or 0,
        "ssm_conv": 4,
    }


def _modules(a: Arguments) -> int:
    """Modules of multi-token prediction: a number, or as many patterns behind a hybrid's own, each behind a slash."""
    text = a.text("hybrid-layer-pattern") or ""
    patterns = text.split("/")[1:] or [p for p in (a.text("mtp-hybrid-override-pattern"),) if p is not None]
    for pattern in patterns:
        if pattern not in MODULES:
            raise InputError(f"a module's pattern is {shown(pattern)}; allowed: {' or '.join(MODULES)}")
    return a.number("mtp-num-layers", text.count("/"), least=0) or 0


def _vocab(a: Arguments, given: int | None, notes: list[str]) -> int:
    if given is not None:
        return given
    padded = a.number("padded-vocab-size")
    if padded is not None:
        return padded
    size = a.number("vocab-size")
    if size is not None:
        # NullTokenizer counts a token for the end of a document on top.
        return size + (a.text("tokenizer-type") == "NullTokenizer")
    notes.append(f"the vocabulary is the tokenizer's, not in the arguments: {ASSUMED_VOCAB}; give --vocab")
    return ASSUMED_VOCAB


def _expert_layers(a: Arguments, layers: int) -> dict[str, Any]:
    """Which layers have experts, from `--moe-layer-freq`: every Nth, or the 1 of a pattern."""
    text = a.text("moe-layer-freq", "1") or "1"
    if EVERY.fullmatch(text):
        pattern = [int(i % int(text) == 0) for i in range(layers)]
    else:
        pattern = _by_layer("moe-layer-freq", text, layers, f"([0]*1+[1]*{layers - 1})")
    each = "".join(map(str, pattern))
    return {"num_dense_layers": each.count("0"), "expert_layers": each if "10" in each else ""}


def _by_layer(name: str, text: str, layers: int, example: str) -> list[int]:
    """An argument's 1 or 0 for each layer, a list such as ([0]*3+[1,0]*29), read without executing it."""
    try:
        pattern = _listed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pattern = []
    if len(pattern) != layers or set(pattern) - {0, 1}:
        fault = f"--{name} is {shown(text)}; allowed: a number, or a pattern of {layers} layers such as {example}"
        raise InputError(fault)
    return pattern


def _listed(node: ast.expr) -> list[int]:
    """The numbers of a list, of lists that are added, or of one that is repeated."""
    if isinstance(node, ast.List) and node.elts:
        return [_number(one) for one in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _listed(node.left) + _listed(node.right)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        raise ValueError("no list")
    once, times = _listed(node.left), _number(node.right)
    if times * len(once) > MOST_LAYERS:
        raise ValueError("too long")
    return once * times


def _number(node: ast.expr) -> int:
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        raise ValueError("no number")
    return node.value
