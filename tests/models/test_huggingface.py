"""config.json files: known counts, the traps of each model type, one-line faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import Model
from planner.base.errors import FileFormatError, UnknownNameError
from planner.models import Transformer, counts, flops, load_model
from planner.models.possible import TEXTS
from tests.models.configs import (
    BLOOM,
    COHERE,
    COHERE2,
    CONFIGS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    FALCON,
    GPT2,
    GPTJ,
    LLAMA,
    MISTRAL,
    NEMOTRON_H,
    OPT,
    PHI,
    PYTHIA,
    QWEN3_MOE,
)

FALCON_40B = FALCON | {
    "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
    "new_decoder_architecture": True,
}  # fmt: skip
# Parameters of the checkpoints on the Hugging Face hub; Pythia's also in its README (EleutherAI/pythia).
CHECKPOINTS: list[tuple[str, dict[str, Any], int]] = [
    ("gpt2", GPT2, 124_439_808),
    ("bigscience/bloom-560m", BLOOM, 559_214_592),
    ("bigscience/bloom-7b1", BLOOM | {"n_layer": 30, "hidden_size": 4096, "n_head": 32}, 7_069_016_064),
    ("facebook/opt-125m", OPT, 125_239_296),
    ("huggyllama/llama-7b", LLAMA, 6_738_415_616),
    ("mistralai/Mistral-7B-v0.1", MISTRAL, 7_241_732_096),
    ("mistralai/Mixtral-8x7B-v0.1", CONFIGS["mixtral"], 46_702_792_704),
    ("Qwen/Qwen2-0.5B", CONFIGS["qwen2"], 494_032_768),
    ("Qwen/Qwen3-0.6B", CONFIGS["qwen3"], 596_049_920),
    ("Qwen/Qwen3-30B-A3B", QWEN3_MOE, 30_532_122_624),
    ("deepseek-ai/DeepSeek-V3", DEEPSEEK_V3 | {"num_nextn_predict_layers": 0}, 671_026_419_200 - 58 * 256),
    ("EleutherAI/pythia-70m", PYTHIA, 70_426_624),
    ("EleutherAI/gpt-j-6b", GPTJ, 6_050_882_784 - 50_400),  # the head's bias
    ("tiiuae/falcon-7b", FALCON, 6_921_720_704),
    ("tiiuae/falcon-40b", FALCON_40B, 41_303_293_952),
    ("microsoft/phi-2", PHI, 2_779_683_840 - 51_200),  # the head's bias
    ("bigcode/starcoder2-3b", CONFIGS["starcoder2"], 3_030_371_328),
    ("ibm-granite/granite-4.0-h-small", CONFIGS["granitemoehybrid"], 32_207_337_984),
    ("zai-org/GLM-4-9B-0414", CONFIGS["glm4"], 9_400_279_040 - 80 * 4096),  # two norms more a layer
    ("CohereForAI/c4ai-command-r-v01", COHERE, 34_980_831_232),
]


def sizes(model: Transformer) -> Transformer:
    """The model but for what changes no size, which these configs leave out."""
    said = dict.fromkeys(TEXTS, "") | {"rotary_base": 0, "rope_scaling": 0, "rotary_percent": 0.0}
    return replace(model, **said, norm_epsilon=0.0, qk_l2_norm=False)


def params(path: str) -> int:
    return int(counts.total_params(load_model(path)))


@pytest.mark.parametrize(("name", "config", "expected"), CHECKPOINTS, ids=[c[0] for c in CHECKPOINTS])
def test_checkpoints(name: str, config: dict[str, Any], expected: int, write: Any) -> None:
    assert params(write(config)) == expected


def test_every_model_type_is_covered() -> None:
    from planner.models.huggingface import MODEL_TYPES

    assert set(MODEL_TYPES) == set(CONFIGS)


@pytest.mark.parametrize("config", [GPT2, OPT, LLAMA, CONFIGS["mixtral"]], ids=lambda config: config["model_type"])
def test_a_file_without_a_sequence_length_takes_the_one_that_is_given(config: dict[str, Any], write: Any) -> None:
    key = "n_positions" if config is GPT2 else "max_position_embeddings"
    path = write({name: value for name, value in config.items() if name != key})
    with pytest.raises(FileFormatError, match=f"field {key} is missing; allowed: .*, or --seq-len$"):
        load_model(path)
    assert load_model(path, 1024) == load_model(write(config | {key: 1024}))
    assert Model(path, seq_len="8k").transformer.seq_len == 8192
    assert load_model(write(config), 64).seq_len == config[key], "a file's own stays, for others to change"


def test_folder_and_name(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(GPT2)
    assert load_model(str(tmp_path)).name == tmp_path.name
    monkeypatch.chdir(tmp_path.parent)
    assert load_model(tmp_path.name).num_layers == 12
    assert load_model(write(GPT2, "mine.json")).name == "mine"


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        (LLAMA, 32),
        ({k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}, 32),
        (LLAMA | {"num_key_value_heads": 4}, 4),
        (MISTRAL, 8),
        (MISTRAL | {"num_key_value_heads": None}, 32),
        (CONFIGS["mixtral"], 8),
    ],
)
def test_kv_heads_absent_and_null(config: dict[str, Any], kv_heads: int, write: Any) -> None:
    assert load_model(write(config)).num_kv_heads == kv_heads


@pytest.mark.parametrize("model_type", CONFIGS)
def test_tying_follows_the_type_unless_said(model_type: str, write: Any) -> None:
    config = {k: v for k, v in CONFIGS[model_type].items() if k != "tie_word_embeddings"}
    tying = (
        "gpt2",
        "bloom",
        "opt",
        "gemma",
        "gemma2",
        "gemma3_text",
        "falcon",
        "cohere",
        "cohere2",
        "smollm3",
        "starcoder2",
    )
    default = model_type in tying
    assert load_model(write(config)).tied is default
    assert load_model(write(config | {"tie_word_embeddings": None})).tied is default
    assert load_model(write(config | {"tie_word_embeddings": not default})).tied is not default


def test_text_config(write: Any) -> None:
    nested = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 1024}}
    assert params(write(nested)) == 6_738_415_616
    outer = {"model_type": "mistral3", "text_config": LLAMA, "tie_word_embeddings": True}
    assert load_model(write(outer)).tied is True


def test_head_dim_is_taken_from_the_file(write: Any) -> None:
    assert load_model(write(MISTRAL | {"hidden_size": 5120, "head_dim": 128})).head_dim == 128
    assert load_model(write(MISTRAL | {"head_dim": None})).head_dim == 128
    assert load_model(write(LLAMA | {"num_attention_heads": 33, "head_dim": 64})).head_dim == 64


def test_llama_biases(write: Any) -> None:
    plain = params(write(LLAMA))
    assert params(write(LLAMA | {"attention_bias": True})) - plain == 32 * 4 * 4096
    assert params(write(LLAMA | {"mlp_bias": True})) - plain == 32 * (2 * 11008 + 4096)


def test_qwen3_moe_dense_layers(write: Any) -> None:
    assert load_model(write(QWEN3_MOE | {"decoder_sparse_step": 2})).num_dense_layers == 24
    assert load_model(write(QWEN3_MOE | {"mlp_only_layers": [0, 47, 47]})).num_dense_layers == 2
    assert load_model(write(QWEN3_MOE | {"mlp_only_layers": None, "num_experts": 0})).num_dense_layers == 48


def test_deepseek_ranks_absent_and_null(write: Any) -> None:
    assert load_model(write(DEEPSEEK_V3 | {"q_lora_rank": None})).q_lora_rank == 0
    left = {k: v for k, v in DEEPSEEK_V3.items() if k not in ("q_lora_rank", "first_k_dense_replace")}
    assert load_model(write(left)) == load_model(write(DEEPSEEK_V3))
    model = load_model(write(DEEPSEEK_V3))
    assert (model.head_dim, model.v_head_dim, model.num_dense_layers) == (192, 128, 3)


def test_deepseek_v2_lite_routes_to_all_its_groups(write: Any) -> None:
    """`topk_method` greedy, and queries without a rank of their own."""
    lite = DEEPSEEK_V2 | {
        "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "q_lora_rank": None,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    model, preset = load_model(write(lite)), load_model("deepseek-v2-lite")
    assert replace(sizes(model), name=preset.name, seq_len=preset.seq_len) == sizes(preset)
    assert load_model(write(DEEPSEEK_V2)).top_k_groups == 3
    assert load_model(write(DEEPSEEK_V2 | {"topk_method": "greedy"})).top_k_groups == 0


def test_a_granite_s_layers_are_llama_s(write: Any) -> None:
    assert params(write(CONFIGS["granite"])) == params(write(CONFIGS["granite"] | {"model_type": "llama"}))


def windows(path: str) -> tuple[int, int]:
    m = load_model(path)
    return (m.num_window_layers, m.window)


def test_sliding_windows(write: Any) -> None:
    assert windows(write(MISTRAL)) == (32, 4096)
    assert windows(write(MISTRAL | {"sliding_window": None})) == (0, 0)
    assert windows(write({k: v for k, v in MISTRAL.items() if k != "sliding_window"})) == (32, 4096)
    assert windows(write(CONFIGS["mixtral"])) == (0, 0)
    assert windows(write(CONFIGS["qwen2"] | {"sliding_window": 2048, "max_window_layers": 20})) == (0, 0)
    late = {"use_sliding_window": True, "sliding_window": 2048, "max_window_layers": 20}
    assert windows(write(CONFIGS["qwen2"] | late)) == (4, 2048)
    assert windows(write(CONFIGS["gpt_oss"])) == (18, 128)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"] * 12
    assert windows(write(CONFIGS["gpt_oss"] | {"layer_types": kinds})) == (24, 128)
    assert windows(write(CONFIGS["gpt_oss"] | {"layer_types": ["full_attention"] * 36})) == (0, 0)
    for wrong in (
        "sliding_attention",
        kinds[:35],
        [*kinds[:35], "linear_attention"],
        [*kinds[:35], ["full_attention"]],
    ):
        with pytest.raises(FileFormatError, match=r"layer_types is .*; allowed: a list of .*, one for each of the 36"):
            load_model(write(CONFIGS["gpt_oss"] | {"layer_types": wrong}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PYTHIA, (True, True)),
        ({k: v for k, v in PYTHIA.items() if k != "use_parallel_residual"}, (True, True)),
        (PYTHIA | {"use_parallel_residual": False}, (False, False)),
        (GPTJ, (True, False)),
        (FALCON, (True, False)),
        (FALCON | {"parallel_attn": False}, (False, False)),
        (FALCON_40B, (True, True)),
        (FALCON_40B | {"num_ln_in_parallel_attn": 1}, (True, False)),
        (PHI, (True, False)),
        (COHERE, (True, False)),
        (COHERE2, (True, False)),
        (LLAMA, (False, False)),
    ],
)
def test_attention_and_mlp_side_by_side(config: dict[str, Any], expected: tuple[bool, bool], write: Any) -> None:
    m = load_model(write(config))
    assert (m.parallel_block, m.parallel_norms) == expected


def test_falcon_s_key_heads_and_cohere_2_s_windows(write: Any) -> None:
    assert [load_model(write(c)).num_kv_heads for c in (FALCON, FALCON_40B, FALCON | {"multi_query": False})] == [
        1,
        8,
        71,
    ]
    assert windows(write(COHERE2)) == (24, 4096)
    assert windows(write(COHERE2 | {"sliding_window_pattern": 8})) == (28, 4096)
    assert windows(write(COHERE2 | {"layer_types": ["sliding_attention", "full_attention"] * 16})) == (16, 4096)
    assert load_model(write(GPTJ)).rotary_percent == 0.25


def test_multi_token_prediction_is_read(write: Any) -> None:
    """As the model was trained: the preset with a module; a config without says so."""
    model, preset = load_model(write(DEEPSEEK_V3)), load_model("deepseek-v3-mtp")
    assert replace(sizes(model), name=preset.name, seq_len=preset.seq_len) == sizes(preset)
    for without in (
        DEEPSEEK_V3 | {"num_nextn_predict_layers": 0},
        {k: v for k, v in DEEPSEEK_V3.items() if "nextn" not in k},
    ):
        assert load_model(write(without)).num_mtp_layers == 0
    assert load_model(write(LLAMA | {"num_nextn_predict_layers": 1})).num_mtp_layers == 0  # LLaMA has none


LLAMA_31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
BY_KIND = {
    "full_attention": LLAMA_31 | {"rope_theta": 500000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, (0, 0, 0.0, 0.0)),
        (LLAMA | {"rope_theta": 500000.0, "rms_norm_eps": 1e-05}, (500_000, 1, 0.0, 1e-5)),
        (LLAMA | {"rope_theta": 500000.0, "rope_scaling": LLAMA_31}, (500_000, 8, 0.0, 0.0)),
        (LLAMA | {"rope_parameters": {"rope_theta": 500000.0, **LLAMA_31}}, (500_000, 8, 0.0, 0.0)),
        (LLAMA | {"rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40}}, (10_000, 0, 0.0, 0.0)),
        (GPT2 | {"layer_norm_epsilon": 1e-05}, (0, 0, 0.0, 1e-5)),
        (PYTHIA | {"rotary_emb_base": 10000, "rotary_pct": 0.25, "layer_norm_eps": 1e-05}, (10_000, 1, 0.25, 1e-5)),
        (CONFIGS["gemma3_text"], (1_000_000, 1, 0.0, 1e-6)),
        (CONFIGS["minimax_m2"] | {"rotary_dim": 64, "rope_theta": 5000000}, (5_000_000, 1, 0.5, 0.0)),
        (CONFIGS["gemma3_text"] | {"rope_parameters": BY_KIND, "rms_norm_eps": 1e-05}, (500_000, 8, 0.0, 1e-5)),
    ],
)
def test_rotary_positions_and_norms(config: dict[str, Any], expected: tuple[float, ...], write: Any) -> None:
    m = load_model(write(config))
    assert (m.rotary_base, m.rope_scaling, m.rotary_percent, m.norm_epsilon) == expected


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rope_theta": "big"}, "field rope_theta is 'big'; allowed: a number from 0 to 1e9"),
        ({"rope_theta": 1e4, "rope_scaling": "yarn"}, "field rope_scaling is 'yarn'; allowed: a table, or null"),
        ({"rms_norm_eps": 2}, "rms_norm_eps is 2"),
    ],
)
def test_wrong_positions_and_norms_are_named(wrong: dict[str, Any], said: str, write: Any) -> None:
    with pytest.raises(FileFormatError, match=said):
        load_model(write(LLAMA | wrong))


def test_presets_are_what_the_configs_say(write: Any) -> None:
    named = {
        "gpt_oss": "gpt-oss-120b", "kimi_k2": "kimi-k2", "qwen3_moe": "qwen3-30b-a3b", "qwen2_moe": "qwen2-57b-a14b",
        "deepseek_v2": "deepseek-v2", "glm4_moe": "glm-4.5-air", "gemma": "gemma-7b", "gemma2": "gemma2-9b",
        "phi3": "phi-4", "olmo2": "olmo2-7b", "olmoe": "olmoe-1b-7b", "gptj": "gpt-j-6b", "falcon": "falcon-7b",
        "phi": "phi-2", "cohere": "command-r", "gemma3_text": "gemma3-4b", "smollm3": "smollm3-3b",
        "apertus": "apertus-70b", "llama4_text": "llama4-maverick",
    }  # fmt: skip
    for model_type, name in named.items():
        model, preset = load_model(write(CONFIGS[model_type])), load_model(name)
        assert replace(sizes(model), name=name, seq_len=preset.seq_len, ffn=preset.ffn) == sizes(preset)


def test_llama4_may_list_its_layers_with_experts(write: Any) -> None:
    listed = CONFIGS["llama4_text"] | {"moe_layers": [1, 3, 5]}
    assert load_model(write(listed)).num_dense_layers == 45
    assert load_model(write(CONFIGS["llama4_text"] | {"interleave_moe_layer_step": 1})).num_dense_layers == 0
    with pytest.raises(FileFormatError, match="moe_layers"):
        load_model(write(listed | {"moe_layers": [48]}))


def test_what_says_nothing_of_the_architecture_is_taken(write: Any) -> None:
    more = {"attn_type_list": [1] * 62, "shared_intermediate_size": 0, "index_topk": None}
    assert load_model(write(CONFIGS["minimax_m2"] | more)) == load_model(write(CONFIGS["minimax_m2"]))
    chunked = CONFIGS["llama4_text"] | {"layer_types": [*["chunked_attention"] * 3, "full_attention"] * 12}
    assert load_model(write(chunked)) == load_model(write(CONFIGS["llama4_text"]))
    sizes_of = (None, 0), (4096, 4096)
    assert all(load_model(write(chunked | {"attention_chunk_size": said})).chunk == size for said, size in sizes_of)
    assert params(write(NEMOTRON_H | {"n_routed_experts": 8})) == params(write(NEMOTRON_H))


def test_later_models_have_the_parameters_of_their_checkpoints(write: Any) -> None:
    """In billions, as their repositories' safetensors have them; norms beyond the usual two a layer aren't counted."""
    named = {
        "gemma3_text": 3.880, "smollm3": 3.075, "seed_oss": 36.15, "apertus": 70.60, "minimax_m2": 228.70,
        "olmo3": 32.23,
    }  # fmt: skip
    for model_type, billions in named.items():
        assert params(write(CONFIGS[model_type])) / 1e9 == pytest.approx(billions, rel=1e-3), model_type


def test_windows_of_all_layers_but_every_sixth(write: Any) -> None:
    model = load_model(write(CONFIGS["gemma3_text"]))
    assert (model.num_window_layers, model.window, model.seq_len) == (29, 1024, 131072)
    kinds = ["full_attention", *["sliding_attention"] * 33]
    assert load_model(write(CONFIGS["gemma3_text"] | {"layer_types": kinds})).num_window_layers == 33
    assert load_model(write(CONFIGS["olmo3"])).num_window_layers == 48


def test_shared_experts_are_as_wide_as_the_file_says(write: Any, tmp_path: Path) -> None:
    """No multiple of a routed expert's width: three matrices of 2,000 channels in each of 28 layers."""
    with_size = {size: write(CONFIGS["qwen2_moe"] | {"shared_expert_intermediate_size": size}, f"{size}.json")
                 for size in (0, 2000)}  # fmt: skip
    width = load_model("qwen2-57b-a14b").hidden
    models = {size: load_model(path) for size, path in with_size.items()}
    assert params(with_size[2000]) - params(with_size[0]) == 28 * 3 * width * 2000
    flop = {size: float(flops.forward_flops(model)["experts"]) for size, model in models.items()}
    assert flop[2000] - flop[0] == pytest.approx(models[0].seq_len * 28 * 2 * 3 * width * 2000)
    own = tmp_path / "own.toml"
    text = 'family="moe"\nlayers=2\nhidden=8\nheads=2\nvocab=9\nseq_len=8\nexperts=4\ntop_k=2\nmoe_ffn=8'
    own.write_text(f"[model]\n{text}\nshared_experts=2.5\n")
    assert load_model(str(own)).shared_ffn == 20
    own.write_text(f"[model]\n{text}\nshared_experts=-1\n")
    with pytest.raises(FileFormatError, match=r"field shared_experts is -1; allowed: 0.0 or more"):
        load_model(str(own))


def test_glm_has_one_group_where_its_file_says_none(write: Any) -> None:
    said = CONFIGS["glm4_moe"]
    model = load_model(write({key: value for key, value in said.items() if key not in ("n_group", "topk_group")}))
    assert (model.expert_groups, model.top_k_groups) == (0, 0)


def test_nemotron_h_layers_of_each_kind(write: Any) -> None:
    assert params(write(NEMOTRON_H)) == params("nemotron-h-8b")
    experts = {"moe_intermediate_size": 1856, "n_routed_experts": 128, "num_experts_per_tok": 6}
    shared = {"moe_shared_expert_intermediate_size": 3712, "head_dim": 128}
    # The config of Nemotron 3 Nano 30B-A3B in the sizes that count: 31.6 billion parameters, 3.2 without embeddings a
    # token (arXiv 2512.20848).
    nano = NEMOTRON_H | experts | shared | {
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "hidden_size": 2688,
        "num_key_value_heads": 2, "mamba_num_heads": 64,
    }  # fmt: skip
    model = load_model(write(nano))
    assert (model.num_ssm_layers, model.num_dense_layers, model.num_shared_experts) == (23, 0, 2)
    assert params(write(nano)) / 1e9 == pytest.approx(31.6, abs=0.1)
    # Later files list the kinds instead of a pattern.
    kinds = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    listed = nano | {"layers_block_type": [kinds[letter] for letter in nano["hybrid_override_pattern"]]}
    del listed["hybrid_override_pattern"]
    assert load_model(write(listed)) == model


def test_nemotron_3_super_has_latents_and_a_module(write: Any) -> None:
    """Sizes of the config of NVIDIA-Nemotron-3-Super-120B-A12B; its second prediction uses the same module."""
    m = load_model("nemotron-3-super-120b-a12b-mtp")
    pattern = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    model = load_model(write(NEMOTRON_H | {
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": 88, "num_key_value_heads": 2, "moe_intermediate_size": 2688, "n_routed_experts": 512,
        "num_experts_per_tok": 22, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
        "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
    }))  # fmt: skip
    assert (model.moe_latent, model.num_mtp_layers) == (1024, 1)
    assert counts.total_params(model) == counts.total_params(m)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (LLAMA | {"model_type": "mamba"}, "model_type is 'mamba'.*gpt2.*llama"),
        (
            LLAMA | {"model_type": "qwen3_next"},
            "'qwen3_next'; allowed: a model without linear attention, which planner",
        ),
        (CONFIGS["granitemoehybrid"] | {"layer_types": ["mamba"] * 39}, "num_hidden_layers is 40; allowed: 39"),
        (
            CONFIGS["granitemoehybrid"] | {"layer_types": ["conv"] * 40},
            "layer_types is .*; allowed: a list of mamba or",
        ),
        (LLAMA | {"model_type": ["llama"]}, "model_type"),
        ({}, "model_type is missing"),
        ({"text_config": {"hidden_size": 3}}, "model_type is missing"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size is missing"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size is '4096'"),
        (LLAMA | {"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        (LLAMA | {"hidden_size": True}, "hidden_size is True"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (LLAMA | {"num_attention_heads": -1}, "num_attention_heads is -1"),
        (LLAMA | {"num_attention_heads": 33}, "num_attention_heads is 33.*hidden_size 4096"),
        (LLAMA | {"num_key_value_heads": 5}, "num_attention_heads 32.*num_key_value_heads 5"),
        (LLAMA | {"vocab_size": 10**30}, "vocab_size"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        (LLAMA | {"num_hidden_layers": 100_000, "hidden_size": 32 * 10**5, "intermediate_size": 10**8}, "1e18"),
        (CONFIGS["mixtral"] | {"num_experts_per_tok": 9}, "num_experts_per_tok 9"),
        (QWEN3_MOE | {"mlp_only_layers": [[1]]}, "mlp_only_layers"),
        (QWEN3_MOE | {"mlp_only_layers": [1, 48]}, r"mlp_only_layers is \[1, 48\]; allowed: .* from 0 to 47"),
        (DEEPSEEK_V3 | {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1"),
        (QWEN3_MOE | {"num_hidden_layers": 10**9}, "layers"),
        (DEEPSEEK_V3 | {"attention_bias": True}, "attention_bias"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK_V3 | {"index_topk": 2048}, "index_topk is 2048; allowed: 0; planner has no sparse attention"),
        (CONFIGS["glm4_moe"] | {"moe_layer_freq": 2}, "moe_layer_freq is 2; allowed: 1"),
        (CONFIGS["minimax_m2"] | {"attn_type_list": [0, 1] * 31}, "attn_type_list is .*; allowed: 1"),
        (CONFIGS["minimax_m2"] | {"shared_intermediate_size": 2048}, "shared_intermediate_size is 2048; allowed: 0"),
        (CONFIGS["qwen2"] | {"layer_types": ["linear_attention"] * 24}, "layer_types is .*full_attention or"),
        (QWEN3_MOE | {"layer_types": ["linear_attention"] * 48}, "layer_types is .*full_attention or"),
        (
            LLAMA | {"num_local_experts": 8},
            "num_local_experts is 8; allowed: 0 or 1; planner has no experts in a 'llama'",
        ),
        (NEMOTRON_H | {"hybrid_override_pattern": "MX" * 26}, "hybrid_override_pattern is 'MX"),
        (NEMOTRON_H | {"hybrid_override_pattern": None}, "hybrid_override_pattern is None"),
        (NEMOTRON_H | {"num_hidden_layers": 53}, "num_hidden_layers is 53; allowed: 52"),
        (NEMOTRON_H | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M"}, "mtp_hybrid_override"),
        (NEMOTRON_H | {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "conv"]}, "layers_block_type"),
        (NEMOTRON_H | {"hybrid_override_pattern": None, "layers_block_type": [["mamba"]]}, "layers_block_type"),
        (NEMOTRON_H | {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["moe"]}, "attention', 'mlp'"),
        (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim is 512"),
        (GPTJ | {"rotary_dim": 10_000}, "rotary_dim is 10000; allowed: up to 256, a head's channels"),
        (PYTHIA | {"use_parallel_residual": "yes"}, "use_parallel_residual is 'yes'; allowed: true or false"),
        (FALCON | {"rotary_dim": 1, "multi_query": False, "num_kv_heads": 3}, "num_attention_heads 71.*num_kv_heads 3"),
        (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("[1, 2]", "object"),
        ('{"model_type": "llama", ', "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_faults_are_one_line_with_path_and_field(config: Any, says: str, write: Any) -> None:
    path = write(config)
    with pytest.raises(FileFormatError, match=says) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(path)
    assert "\n" not in message
    assert len(message) < len(path) + 450


def test_missing_files(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "no.json"), "no/such", "bad\0name.json", "../"):
        with pytest.raises(FileFormatError):
            load_model(name)
    for name in ("", "gtp2", "x-", "x-1.5", "\0", "x" * 5000):
        with pytest.raises(UnknownNameError):
            load_model(name)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(FileFormatError, match="UTF-8"):
        load_model(str(path))
