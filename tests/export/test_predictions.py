"""A file's prediction is its own framework's: made with that profile, named, and never mixed with an anchor's."""

import json
import re

import pytest

from planner import Cluster, Model, estimate, recommend
from planner.api.existing_run import review_file, review_megatron
from planner.api.frameworks import setup_under
from planner.base.files import shipped_folder
from planner.base.units import format_seconds
from planner.calibration.anchor import anchor
from planner.calibration.moved import moved_framework
from planner.exporters.plan_export import TARGETS, export_plan, get_target
from planner.exporters.target import OWN_FILE, family
from planner.hardware import framework_names, load_cluster, load_framework
from planner.models import load_model
from planner.models.flops import causal_share
from planner.plan_file import read_plan
from planner.question import load_setup
from planner.setup import Setup
from tests.calibration.test_fit import shipped_runs
from tests.commands import planner

LAYOUT = {"dp": 4, "tp": 2, "zero": 1, "sequence_parallel": True}
OWN = {"deepspeed": "transformers-deepspeed", "accelerate": "transformers", "torchtitan": "torchtitan",
       "torchtitan-toml": "torchtitan", "megatron": "megatron-core", "megatron-bridge": "megatron-core"}  # fmt: skip


def saved(folder, **more):
    one = estimate(Model("llama3-8b"), Cluster("dgx-h100"), batch=64, **LAYOUT)
    path = folder / "plan.json"
    path.write_text(json.dumps(one.to_dict() | more))
    return path, one


def predicted(framework, layout):
    one = estimate(Model("llama3-8b"), Cluster("dgx-h100"), batch=64, framework=framework, **layout)
    causal = one.mfu * causal_share(load_model("llama3-8b"))
    shown = f"causal MFU {causal:.1%} ({one.mfu:.1%} with whole attention)"  # as `recommend` says it
    return f"Predicted with profile {framework}: {format_seconds(one.step_time_s)} per step, {shown}"


@pytest.mark.parametrize("to", TARGETS)
def test_the_prediction_is_made_with_the_profile_that_it_names(to, tmp_path):
    """Megatron-Core's plan: DeepSpeed's, FSDP's and torchtitan's files are predicted as `estimate --framework` does."""
    plan = read_plan(saved(tmp_path)[0])
    done = export_plan(plan, get_target(to))
    layout = {k: v for k, v in done.layouts.row(0).items() if k != "global_batch"}
    assert predicted(OWN[to], layout) in done.text
    other = "megatron" not in to
    assert ("The plan's own layout with profile megatron-core: " in done.text) == other
    asked = export_plan(plan, get_target(to), own=False)
    assert "Predicted with profile megatron-core: " in asked.text


def test_framework_takes_the_words_of_every_command(tmp_path):
    """`deepspeed` is a profile's other name; the plan's figures are not told for another profile than its own."""
    path, one = saved(tmp_path)
    done = planner("export", str(path), "--to", "deepspeed", "--framework", "deepspeed")
    assert done.returncode == 0, done.stderr
    comment = "\n".join(json.loads(done.stdout)["comment"])
    assert comment.count("with profile transformers-deepspeed: ") == 2
    assert format_seconds(one.step_time_s) not in comment
    settled, unknown = (
        planner("export", str(path), "--to", "deepspeed", "--framework", name) for name in ("nemo", "deepspede")
    )
    assert "Predicted with profile nemo: " in settled.stdout
    assert "nearest: deepspeed" in unknown.stderr


def test_seconds_with_an_anchor_stand_beside_no_others(tmp_path):
    """Twice as slow as the profile says, as runs told: the file's two predictions agree, and say what they have."""
    path, one = saved(tmp_path)
    figures = {"step_time_s": 2 * one.step_time_s, "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu / 2}
    slow = json.loads(path.read_text()) | figures | {"anchor": {}}
    del slow["time_s"]
    path.write_text(json.dumps(slow))
    plan = read_plan(path)
    twice, once = (format_seconds(n * one.step_time_s) for n in (2, 1))
    same, other = (
        " ".join(export_plan(plan, get_target(to)).text.replace("\n#  ", "").split())
        for to in ("megatron", "accelerate")
    )
    assert f"Predicted with profile megatron-core: {twice} per step" in same
    assert "These seconds are with the measured runs that the plan was anchored on." in same
    assert f"own layout with profile megatron-core: {once} per step" in other
    assert twice not in other
    assert "These seconds are without the measured runs that the plan was anchored on." in other


def test_whose_code_a_profile_is_of(tmp_path):
    mine = tmp_path / "mine.toml"
    known = {"primus": "megatron", "megatron-deepspeed-2021": "deepspeed", "transformers-deepspeed": "deepspeed",
             "fsdp-compiled": "pytorch", "jax": "jax", "nanotron": "nanotron"}  # fmt: skip
    assert {name: family(load_framework(name)) for name in known} == known
    for name, whose in known.items():
        mine.write_text(f'name = "mine"\nbase = "{name}"\n')
        assert family(load_framework(str(mine))) == whose
    alone = (shipped_folder("hardware_profiles") / "frameworks" / "nanotron.toml").read_text()
    mine.write_text(alone.replace('name = "nanotron"', 'name = "mine"'))
    assert family(load_framework(str(mine))) == OWN_FILE
    setup = Setup(load_model("llama3-8b"), load_cluster("dgx-h100"), load_framework(str(mine)))
    assert get_target("deepspeed").own(setup) is setup
    other = get_target("deepspeed").own(load_setup("llama3-8b", "dgx-h100", framework="nanotron"))
    assert other.framework.name == "transformers-deepspeed"


def test_a_name_has_one_profile():
    """A name that is an export's and a profile's: `--framework deepspeed` has the figures of today's DeepSpeed."""
    both = sorted({*TARGETS} & {*framework_names()})
    assert [load_framework(name).name for name in both] == [TARGETS[name].profile for name in both]
    assert load_setup("llama3-8b", "dgx-h100", framework="deepspeed").framework.whole_reduces == 2
    assert setup_under("llama3-8b", "dgx-h100", "deepspeed").framework.whole_reduces == 2


def test_an_anchor_moves_another_frameworks_figures_too():
    plain = load_setup("llama3-8b", "dgx-h100")
    found = anchor(shipped_runs("megatron-core-h100-weak")[:3], plain.cluster)
    other = get_target("accelerate").own(found.anchored(plain))
    assert other.framework == moved_framework(load_framework("transformers"), found.update.shift)
    assert other.framework != load_framework("transformers")
    assert other.cluster == found.anchored(plain).cluster


def told(text):
    """The step that a file's top predicts."""
    return re.search(r"Predicted with profile (\S+): (.+?) per step", text).groups()


@pytest.mark.parametrize(("cluster", "profile"), [("dgx-h100", "megatron-core"), ("rtx-4090-server", "fsdp")])
def test_what_is_exported_and_read_back_has_the_same_estimate(cluster, profile, tmp_path):
    """By default, and whatever profile the cluster has: Megatron-LM's file has Megatron's seconds, DeepSpeed's its own.

    The best that each can run is what `recommend --framework` finds: no ZeRO 3 of Megatron's, no sequence parallelism
    of DeepSpeed's.
    """
    asked = {"cluster": cluster, "gpus": 8, "batch": 32}
    plan = recommend(Model("gpt2-medium"), **asked)
    assert plan.setup.framework.name == profile
    plan.best.export("megatron", tmp_path / "launch.sh")
    plan.best.export("deepspeed", tmp_path / "ds.json")
    own = {"network": None, "framework": None, "gpus": 8, "attention": plan.best.layout["attention"]}
    row = export_plan(plan.best.as_plan(), get_target("deepspeed")).layouts.row(0)
    python = {"model": "gpt2-medium", "seq_len": None, "pp": row["pp"], "ep": 1, "recompute": row["recompute"]}
    runs = {
        "megatron": review_megatron((tmp_path / "launch.sh").read_text(), cluster, model=None, vocab=None, **own),
        "deepspeed": review_file("deepspeed", tmp_path / "ds.json", cluster, **own, **python),
    }
    for to, name in (("megatron", "launch.sh"), ("deepspeed", "ds.json")):
        record, (named, seconds) = runs[to].record, told((tmp_path / name).read_text())
        assert named == OWN[to]
        assert record["framework"] == named
        assert format_seconds(record["step_time_s"]) == seconds
        best = recommend(Model("gpt2-medium"), **asked, framework=to, zero=None).best
        assert best.setup.framework.name == named
        found = record["best_runnable"]
        assert found["step_time_s"] == pytest.approx(best.step_time_s, rel=0.03)
        assert found["layout"]["zero"] < 2 or to == "deepspeed"
        assert not found["layout"]["sequence_parallel"] or to == "megatron"
