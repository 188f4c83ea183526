"""Names as papers, hubs and people write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import FileFormatError, UnknownNameError
from planner.base.files import read_toml
from planner.base.lookup import same_name
from planner.hardware import load_cluster, load_framework, profile_names
from planner.models import PRESETS, load_model, model_names
from planner.schedules import ALIASES, SCHEDULES, get_schedule

OTHER_NAMES = read_toml(PRESETS)["same_sizes"]
MODELS = [*model_names(), *OTHER_NAMES]


@pytest.mark.parametrize(
    ("written", "preset"),
    [
        ("Llama 3.1 8B", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3.1-70b"),
        ("Llama-3.3-70B-Instruct", "llama3.1-70b"),
        ("llama-3-70b", "llama3-70b"),
        ("LLaMA-65B", "llama-65b"),
        ("Llama-2-7b-hf", "llama2-7b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("Qwen/Qwen2.5-72B-Instruct", "qwen2-72b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("mistralai/Mistral-Nemo-Base-2407", "mistral-nemo-12b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("nemotronh-56b", "nemotron-h-56b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
        ("nvidia/Nemotron-H-56B-Base-8K", "nemotron-h-56b"),
        ("Nemotron-4 340B", "nemotron4-340b"),
        ("state-spaces/mamba2-2.7b", "mamba2-2.7b"),
        ("bigscience/bloom", "bloom-176b"),
    ],
)
def test_a_model_by_the_name_that_others_give_it(written: str, preset: str):
    assert load_model(written) == load_model(preset)


@pytest.mark.parametrize(
    "names", [MODELS, [*SCHEDULES, *ALIASES], *map(profile_names, ("clusters", "frameworks", "links", "accelerators"))]
)
def test_no_two_names_are_one(names: list[str]):
    """Each stands for itself, however its letters are set apart."""
    assert [same_name(n, names) for n in names] == names


def test_every_other_name_is_a_preset_s():
    assert set(OTHER_NAMES.values()) <= set(model_names())
    assert not set(OTHER_NAMES) & set(model_names())


@given(name=st.sampled_from(MODELS), data=st.data())
def test_case_and_separators_do_not_matter(name: str, data: st.DataObject):
    between = st.sampled_from(["", "-", "_", " "])
    text = "".join(data.draw(between) if c in "-_ " else c for c in name)
    upper = data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    text = "".join(c.upper() if up else c for c, up in zip(text, upper, strict=True))
    assert same_name(text, MODELS) == name


@given(text=st.text(max_size=40))
def test_any_text_is_a_known_name_or_none(text: str):
    assert same_name(text, MODELS) in {None, *MODELS}


def test_profiles_too():
    assert load_cluster("DGX_A100_80GB") == load_cluster("dgx-a100-80gb")
    assert load_framework("Megatron-LM") == load_framework("megatron-lm")
    assert same_name("h100", profile_names("clusters")) is None
    assert same_name("Megatron Core", profile_names("frameworks")) == "megatron-core"


@pytest.mark.parametrize(
    ("written", "schedule"), [("1F1B", "1f1b"), ("zb_h1", "zb-h1"), ("ZB-2p", "zb-2p"), ("DAPPLE", "1f1b")]
)
def test_schedules_too(written: str, schedule: str):
    assert get_schedule(written).name == schedule


def test_what_is_a_path_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with a config is read; one that is missing isn't taken for a preset of its last part."""
    monkeypatch.chdir(tmp_path)
    for missing in ("./llama3-8b", "models/mine/llama3-8b", "/llama3-8b", "~/llama3-8b"):
        with pytest.raises(FileFormatError, match="can't be read"):
            load_model(missing)
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(FileFormatError, match="model_type"):
        load_model("meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize("unknown", ["llama3-9b", "deepseek-v9", "base", "-instruct", " ", "gpt"])
def test_another_model_is_not_taken_for_one(unknown: str):
    with pytest.raises(UnknownNameError, match="unknown model"):
        load_model(unknown)


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (8, "zzz", "allowed: " + ", ".join(f"name{i:02}" for i in range(8))),
        (60, "name04x", "; allowed: name00, name01, "),
        (61, "name04x", "nearest: name04, "),
        (9, "name04x", "nearest: name04, "),
        (9, "zzz", "; allowed: " + ", ".join(f"name{i:02}" for i in range(9))),
        (60, "zzz", "name59"),
        (61, "zzz", "known: name00, name01, name02, name03, name04, name05, name06, name07 and 53 more"),
    ],
)
def test_names_are_said_to_be_near_only_where_they_are(count: int, name: str, said: str):
    assert said in str(UnknownNameError("thing", name, [f"name{i:02}" for i in range(count)]))
