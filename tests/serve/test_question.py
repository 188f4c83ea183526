"""A question of texts: what it means, that no text is a path, and that the command and the Python say the same."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from planner.base.errors import PlannerError
from planner.choices.table import SETTLED, SHARED
from planner.cli import app
from planner.serve.fields import FIELDS, form_record
from planner.serve.question import read_question

ASK = {"model": "llama-13b", "cluster": "dgx-a100-80gb", "gpus": "16", "batch": "128"}
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 32000,
    "intermediate_size": 2816, "max_position_embeddings": 2048,
}  # fmt: skip


def test_texts_become_arguments():
    question = read_question(
        ASK | {"tp": "2,4", "pp": "!1", "schedule": "!zb-*,dualpipe", "sequence_parallel": "on", "allow_offload": "on",
               "max_memory_gib": "70", "seq_len": "2k", "dispatcher": "", "optimizer": "muon"}
    )  # fmt: skip
    assert question.model.seq_len == 2048
    assert question.batch == 128
    assert question.given == {
        "tp": [2, 4], "exclude": ["schedule=zb-*", "schedule=dualpipe", "pp=1"], "sequence_parallel": True,
        "allow_offload": True, "max_memory_gib": 70.0, "optimizer": "muon",
    }  # fmt: skip


def test_a_batch_of_tokens():
    assert read_question(ASK | {"batch": "4M", "batch_in": "tokens"}).batch == 2048
    assert read_question(ASK | {"batch": "1024"}).batch == 1024
    for unit in ({}, {"batch_in": "tokens"}):  # as planner recommend without --global-batch
        assert read_question(ASK | {"batch": ""} | unit).batch == 2048
    with pytest.raises(PlannerError, match="batch is '4M'; allowed: sequences, such as 1024; 4M is a batch in tokens"):
        read_question(ASK | {"batch": "4M"})


def test_a_pasted_config_is_a_model():
    texts = {k: v for k, v in ASK.items() if k != "model"} | {"config": json.dumps(LLAMA)}
    question = read_question(texts)
    assert question.model.transformer.num_layers == 16
    assert question.model.name == "pasted-model"
    with pytest.raises(PlannerError, match=r"^config\.json: field hidden_size is missing"):
        read_question(texts | {"config": json.dumps({k: v for k, v in LLAMA.items() if k != "hidden_size"})})


@pytest.mark.parametrize("name", ["model", "cluster", "network", "framework"])
def test_no_text_is_a_path(name, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("[model]\n")
    for text in (str(path), "/etc/passwd", "../x.toml", "config.json", "./", "~/x.json"):
        with pytest.raises(PlannerError, match="allowed: "):
            read_question(ASK | {name: text})


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"gpus": "many"}, "gpus is 'many'"), ({"gpus": "100001"}, "gpus is 100001"), ({"batch": "x"}, "batch is 'x'"),
        ({"gpus": ""}, "GPUs is missing"), ({"model": ""}, "Model is missing"), ({"nose": "1"}, "field 'nose'"),
        ({"seq_len": "long"}, "seq_len is 'long'"), ({"sequence_parallel": "maybe"}, "allowed: on or off"),
        ({"max_memory_gib": "much"}, "max_memory_gib is 'much'"), ({"batch": "1e99"}, "batch is"),
        ({"expert_imbalance": "x"}, "expert_imbalance is 'x'"), ({"config": "{"}, "config.json: not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(texts, said):
    with pytest.raises(PlannerError) as error:
        read_question(ASK | texts)
    assert said in str(error.value)


def test_the_form_has_every_choice_once():
    fields = [f["name"] for group in form_record()["groups"] for f in group["fields"]]
    assert sorted(fields) == sorted([*FIELDS, *SHARED, *SETTLED])


FULL = ASK | {"tp": "2,4", "pp": "!1", "zero": "1", "recompute": "none,selective", "max_memory_gib": "60",
              "precision": "bf16", "network": "infiniband-hdr", "seq_len": "4k", "sequence_parallel": "on",
              "objective": "memory", "optimizer": "adam", "any_framework": "on"}  # fmt: skip


def test_the_command_and_the_python_say_the_same():
    question = read_question(FULL)
    plan = question.plan()
    words = shlex.split(question.command)
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    same = json.loads(done.stdout)
    names = {"plan": None}
    exec(question.python.replace("print(plan)", ""), names)
    for other in (same, names["plan"].to_dict()):
        assert other["best"] == plan.to_dict()["best"]
        assert other["searched"] == plan.to_dict()["searched"]


FIGURES = {"accelerator.memory_gib": "60", "accelerator.price_usd_per_hour": "2.5", "nics_per_node": "4"}


def test_figures_of_the_cluster_are_changed():
    question = read_question(ASK | FIGURES)
    own, other = read_question(ASK).cluster.profile, question.cluster.profile
    assert other.accelerator.memory_bytes == 60 * 2**30 != own.accelerator.memory_bytes
    assert (other.nics_per_node, other.accelerator.price_per_hour) == (4, 2.5)
    assert other.node_link == own.node_link
    assert (
        other.name == f"{own.name} with accelerator.memory_gib=60, accelerator.price_usd_per_hour=2.5, nics_per_node=4"
    )
    assert "--figure accelerator.memory_gib=60 --figure accelerator.price_usd_per_hour=2.5" in question.command
    scope = {}
    exec(question.python.rsplit("print", 1)[0], scope)
    asked = scope["plan"].setup.cluster
    assert (asked.name, asked.nics_per_node) == (other.name, 4)
    assert asked.accelerator.memory_bytes == other.accelerator.memory_bytes


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"nics_per_node": "2.5"}, "figure 'nics_per_node' is 2.5; allowed: a whole number"),
        (
            {"accelerator.memory_gib": "-1"},
            "figure 'accelerator.memory_gib' is -1.0; allowed: a value from 0.1 to 10000",
        ),
        ({"accelerator.memory_gib": "much"}, "accelerator.memory_gib is 'much'; allowed: a number"),
        ({"accelerator.power_w": "700"}, "field 'accelerator.power_w' is unknown"),
    ],
)
def test_a_wrong_figure_is_named(texts, said):
    with pytest.raises(PlannerError) as fault:
        read_question(ASK | texts)
    assert str(fault.value).startswith(said)
