"""`planner towers`: what it prints, its record, and the one line that bad input gets."""

from __future__ import annotations

import json

import pytest

import planner
from tests.commands import planner as run
from tests.models.test_huggingface import LLAMA
from tests.models.test_towers import GEMMA3

SMALL = ("towers", "gpt2-xl", "dgx-h100", "8", "--global-batch", "64")


def test_the_answer_adds_up():
    done = run(*SMALL, "--tower", "clip-vit-l-14=2", "--tower", "siglip-so400m-14=1x256", "--json")
    r = json.loads(done.stdout)
    assert [(t["model"], t["sequences"], t["tokens"]) for t in r["towers"]] == [
        ("clip-vit-l-14", 2, 576), ("siglip-so400m-14", 1, 256)
    ]  # fmt: skip
    phases = sum(t["forward_s"] + t["backward_s"] for t in r["towers"])
    moved = r["outputs_to_language_s"] + r["gradients_back_s"]
    assert r["step_time_s"] == pytest.approx(phases + moved + r["language"]["step_time_s"], rel=1e-9)
    assert r["gain"] == pytest.approx(r["uniform"]["step_time_s"] / r["step_time_s"] - 1)
    assert 0 < r["mfu"] < 1
    assert r["memory_gib"] < r["memory_gib_per_gpu"]
    again = planner.towers(
        "gpt2-xl", "dgx-h100", gpus=8, batch=64, towers=["clip-vit-l-14=2", "siglip-so400m-14=1x256"]
    )
    assert again.to_dict() == r


def test_a_frozen_tower_goes_forward_alone():
    said = " ".join(run(*SMALL, "--tower", "clip-vit-l-14=2", "--frozen").stdout.split())  # of any width
    assert "clip-vit-l-14 (0.304B, frozen)" in said
    assert "clip-vit-l-14 forward" in said
    assert "backward" not in said
    assert "gradients back" not in said


def test_measured_steps_with_a_tower_are_off_as_the_answer_says(tmp_path):
    """Feng et al. 2025, arXiv 2408.03505: ViT-22B before GPT-3 175B under one layout for all."""
    sizes = {"layers": 48, "hidden": 6144, "ffn": 24576, "heads": 48, "vocab": 588, "seq_len": 2048}
    path = tmp_path / "vit-22b.toml"
    lines = ["[model]", 'family = "gpt"', "bidirectional = true", "dropout = false"]
    path.write_text("\n".join([*lines, *(f"{name} = {size}" for name, size in sizes.items())]))
    less = []
    for gpus, measured_s in ((1536, 10.43), (2048, 8.06), (3072, 5.87)):
        r = planner.towers(
            "gpt3-175b", "dgx-h100", gpus=gpus, batch=1536, towers=[f"{path}=1"], recompute="full", tp=8, pp=8,
            virtual_stages=12, micro_batch=2,
        ).to_dict()  # fmt: skip
        less.append(round(100 * (1 - r["uniform"]["step_time_s"] / measured_s)))
    assert f"this gives {min(less)} to {max(less)} % less" in r["accuracy"]


def test_a_models_own_config_has_both(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": LLAMA, "vision_config": GEMMA3}))
    asked = ("towers", str(path), "dgx-h100", "64", "--global-batch", "64", "--seq-len", "4096")
    done = run(*asked, "--tower", f"{path}=1")
    assert "1 sequence of 4,096 tokens of" in " ".join(done.stdout.split())
    assert "counted" not in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "Missing option '--tower'"),
        (("--tower", "clip-vit-l-14"), "--tower is 'clip-vit-l-14'; allowed: NAME=SEQUENCES or NAME=SEQUENCESxTOKENS"),
        (("--tower", "clip-vit-l-14=0"), "sequences of a tower is 0; allowed: a whole number from 1 to 1000000"),
        (("--tower", "clip-vit-l-14=1x0"), "tokens of a tower is 0; allowed: a whole number from 1"),
        (("--tower", "nothing=1"), "model 'nothing'"),
        (("--tower", "none.toml=1"), "none.toml"),
        (("--tower", "clip-vit-l-14=1") * 9, "--tower is given 9 times; allowed: 1 to 8"),
        (("--tower", "internvit-6b=1", "--max-memory", "1"), "fit"),
    ],
)
def test_bad_input_gets_one_line(more, said):
    done = run(*SMALL, *more)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_framework_trains_a_bidirectional_model(tmp_path):
    plan = tmp_path / "plan.json"
    run("recommend", "clip-vit-l-14", "dgx-h100", "8", "--global-batch", "64", "--save", str(plan))
    done = run("export", str(plan), "--to", "megatron")
    assert "clip-vit-l-14 is bidirectional; allowed: causal models" in done.stderr
