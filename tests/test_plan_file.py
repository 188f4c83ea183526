"""A plan as a file: what is written is read back; what is wrong is one line that names the field."""

import json
from pathlib import Path

import pytest

from planner.api.layout_estimate import estimate_one
from planner.base.errors import FileFormatError, LayoutError, PlannerError
from planner.calibration.profile_files import fitted_profiles, write_profiles
from planner.hardware import changed_cluster, load_cluster
from planner.layouts import Layouts
from planner.models import load_model
from planner.plan_file import read_choices, read_plan
from planner.question import load_setup
from planner.report.records import estimate_record, question_record
from planner.step.estimate import estimate


def record(model: str = "llama3-8b", cluster: str = "dgx-h100", network: str | None = None, **layout) -> dict:
    q = load_setup(model, cluster, network=network)
    table = Layouts.of(**({"dp": 8, "tp": 4, "pp": 2, "global_batch": 64, "sequence_parallel": True} | layout))
    asked = question_record(q, int(table.gpus[0]), 64)
    return asked | estimate_record(estimate(q, table), 0, q.cluster)


def saved(folder: Path, content: dict) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-175b", "deepseek-v3", "x-64"])
@pytest.mark.parametrize("network", [None, "ethernet-100g-rdma"])
def test_what_is_written_is_read_back(tmp_path, model, network):
    layout = {"tp": 2, "ep": 8} if model == "deepseek-v3" else {}
    content = record(model, network=network, **layout)
    plan = read_plan(saved(tmp_path, content))
    assert plan.setup.model == load_model(model)
    assert plan.setup.cluster == load_cluster("dgx-h100", network=network)
    assert plan.setup.framework.name == "megatron-core"
    assert plan.row == content["layout"]
    assert plan.record["step_time_s"] == content["step_time_s"]


def test_shared_experts_needn_t_be_whole(tmp_path):
    content = record("deepseek-v3", tp=2, ep=8)
    content["shape"]["num_shared_experts"] = 1.5
    content.pop("parameters", None)
    assert read_plan(saved(tmp_path, content)).setup.model.shared_ffn == 3072
    content["shape"]["num_shared_experts"] = -0.5
    with pytest.raises(FileFormatError, match=r"num_shared_experts is -0.5; allowed: a number from 0 to 1e9"):
        read_plan(saved(tmp_path, content))


def test_a_number_chooses_among_the_best(tmp_path):
    one, two = record(), record(tp=2, dp=16)
    path = saved(tmp_path, one | {"best": [{"layout": one["layout"]}, {"layout": two["layout"]}]})
    assert read_plan(path).row["tp"] == 4
    assert read_plan(path, number=2).row["tp"] == 2
    with pytest.raises(FileFormatError, match="number is 3; allowed: 1 to 2, the layouts of "):
        read_plan(path, number=3)


def test_another_cluster_takes_the_place_of_the_named_one(tmp_path):
    path = saved(tmp_path, record() | {"cluster": "my own", "framework": "mine"})
    with pytest.raises(
        PlannerError, match="field cluster is 'my own', which isn't shipped; give its file with --cluster"
    ):
        read_plan(path)
    plan = read_plan(path, cluster="dgx-a100-80gb", framework="megatron-lm")
    assert plan.setup.cluster.name == "dgx-a100-80gb"


def test_a_plan_of_one_s_own_cluster_file_isn_t_read_with_the_shipped_one_s_figures(tmp_path):
    own = tmp_path / "clusters" / "dgx-a100-80gb.toml"
    texts = fitted_profiles([], ["dgx-a100-80gb"], [], "")
    cluster = texts["clusters/dgx-a100-80gb.toml"].replace('framework = "', f'framework = "{tmp_path}/stack.toml" # "')
    (tmp_path / "stack.toml").write_text('base = "megatron-lm"\n')
    write_profiles(tmp_path, texts | {"clusters/dgx-a100-80gb.toml": cluster})
    setup = load_setup("gpt2", str(own))
    content = estimate_one(setup, dp=2, global_batch=2).to_dict()
    assert (content["cluster"], content["cluster_file"]) == ("dgx-a100-80gb", str(own))
    path = saved(tmp_path, content)
    with pytest.raises(FileFormatError, match=f"field cluster is 'dgx-a100-80gb' of {own}; give that file with"):
        read_plan(path)
    again = read_plan(path, cluster=str(own)).setup
    assert (again.cluster.own_file, again.framework.name) == (str(own), "stack")


def test_a_plan_of_one_s_own_framework_file_isn_t_read_with_the_shipped_one_s_figures(tmp_path):
    own = tmp_path / "megatron-lm.toml"
    own.write_text('base = "megatron-lm"\nreserved_gib = 9\n')
    setup = load_setup("gpt2", "dgx-a100-80gb", framework=str(own))
    content = estimate_one(setup, dp=2, global_batch=2).to_dict()
    assert (content["framework"], content["framework_file"]) == ("megatron-lm", str(own))
    path = saved(tmp_path, content)
    with pytest.raises(FileFormatError, match=f"field framework is 'megatron-lm' of {own}; give that file with"):
        read_plan(path)
    assert read_plan(path, framework=str(own)).setup.framework.reserved_bytes == 9 * 2**30
    assert read_plan(path, framework="megatron-lm").setup.framework.own_file is None


BAD = [
    ({"cluster": "../../etc/passwd"}, "cluster is '../../etc/passwd', a path; give it yourself with --cluster"),
    ({"framework": "/tmp/x.toml"}, "framework is '/tmp/x.toml', a path"),
    ({"cluster": "dgx-h100 with nics_per_node"}, "field cluster says figures 'nics_per_node'; allowed: name=number"),
    ({"cluster": "dgx-h100 with nics_per_node=0"}, "figure 'nics_per_node' is 0.0; allowed: a value from 1"),
    ({"cluster": "dgx-h100 over /tmp/x.toml"}, "network is '/tmp/x.toml', a path"),
    ({"cluster": None}, "cluster is missing"),
    ({"cluster": 7}, "cluster is 7"),
    ({"shape": []}, r"field shape is \[\]"),
    ({"shape": None, "model": "/etc/config.json"}, "model is '/etc/config.json'"),
    ({"layout": None}, "no plan: field .*layout is .*planner recommend --save"),
    ({"best": [1]}, "no plan"),
    ({"best": []}, "field best is \\[\\]; allowed: a list of one"),
    ({"mfu": "high"}, "mfu is 'high'; allowed: a finite number"),
    ({"mfu": True}, "mfu is True"),
    ({"gpus": 3}, r"field gpus is 3; allowed: 64, dp \* tp \* pp \* cp of the layout"),
    ({"gpus": "64"}, "field gpus is '64'; allowed: 64"),
    ({"seq_len": -1}, "field seq_len is -1; allowed: 8192, that of shape"),
    ({"seq_len": -1, "shape": None}, "field seq_len: .*seq_len is -1"),
    ({"global_batch": 7}, "field global_batch is 7; allowed: 64, that of the layout"),
    ({"micro_batches": 9}, "field micro_batches is 9; allowed: 8"),
    ({"parameters": 1}, "field parameters is 1; allowed: 8030"),
    ({"model": "gpt2"}, "field model is 'gpt2'; allowed: 'llama3-8b', the name in shape"),
    ({"memory_gib_per_gpu": -80}, "field memory_gib_per_gpu is -80"),
    ({"searched": -1}, "field searched is -1; allowed: a whole number from 0"),
    ({"step_time_s": -1.0}, "step_time_s is -1.0; allowed: a number above 0"),
    ({"tokens_per_s_per_gpu": 1.0}, "field tokens_per_s_per_gpu is 1.0; allowed: .*the tokens of a step over"),
    ({"fits": 1}, "field fits is 1; allowed: true or false"),
]


def test_figures_that_leave_the_profile_are_read_back(tmp_path):
    figures = {"accelerator.memory_gib": 141.5, "nics_per_node": 4.0}
    cluster = changed_cluster("dgx-h100", figures, network="ethernet-100g-rdma")
    content = record(cluster=cluster)
    assert content["cluster"] == "dgx-h100 over ethernet-100g-rdma with accelerator.memory_gib=141.5, nics_per_node=4"
    assert read_plan(saved(tmp_path, content)).setup.cluster == cluster
    assert read_plan(saved(tmp_path, content), cluster="dgx-a100-80gb").setup.cluster == load_cluster("dgx-a100-80gb")


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_faults_name_the_field(tmp_path, changes, said):
    with pytest.raises(FileFormatError, match=said):
        read_plan(saved(tmp_path, record() | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp": "four"}, "layout.tp is 'four'; allowed: a whole number"),
        ({"tp": 0}, "tp is 0"),
        ({"tp": 10**30}, "tp is 10000"),
        ({"tensor": 4}, "unknown field tensor"),
        ({"schedule": "1f2b"}, "unknown schedule '1f2b'"),
        ({"recompute": "some"}, "layout.recompute is 'some'; allowed: none, selective, full, fine"),
        ({"precision": "tf64"}, "layout.precision is 'tf64'"),
        ({"zero": 4}, "zero is 4"),
        ({"sequence_parallel": 1}, "layout.sequence_parallel is 1; allowed: true or false"),
    ],
)
def test_faults_of_the_layout_name_the_field(tmp_path, changes, said):
    content = record()
    content["layout"] |= changes
    with pytest.raises(FileFormatError, match=said):
        read_plan(saved(tmp_path, content))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_layers": 2.0}, "shape.num_layers is 2.0; allowed: a whole number"),
        ({"layers": 2}, "unknown field shape.layers"),
        ({"name": "a\x1b[2J"}, "allowed: text without control characters"),
        ({"gated": 1}, "shape.gated is 1; allowed: true or false"),
    ],
)
def test_faults_of_the_shape_name_the_field(tmp_path, changes, said):
    content = record()
    content["shape"] |= changes
    with pytest.raises(FileFormatError, match=said):
        read_plan(saved(tmp_path, content))


@pytest.mark.parametrize("best", [False, True])
def test_a_layout_that_was_changed_alone_is_refused(tmp_path, best):
    content = record()
    content["layout"]["dp"] = 64
    if best:
        content = {"best": [content]} | {key: content[key] for key in ("shape", "cluster", "framework", "gpus")}
    for read in (read_plan, read_choices):
        with pytest.raises(FileFormatError, match="field gpus is 64; allowed: 512"):
            read(saved(tmp_path, content))


def test_an_illegal_layout_is_refused_but_its_choices_can_be_read(tmp_path):
    content = record()
    content["layout"]["tp"], content["gpus"] = 3, 48
    path = saved(tmp_path, content)
    with pytest.raises(LayoutError, match="tp must divide the attention heads"):
        read_plan(path)
    model, row = read_choices(path)
    assert row["tp"] == 3
    assert model.name == "llama3-8b"
