"""The common question in three words: the cluster and the GPUs behind the model, the batch a usual one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import get_args

import pytest
from typer.models import ArgumentInfo, OptionInfo
from typer.testing import CliRunner

from planner.base.errors import InputError, PlannerError, UnknownNameError
from planner.cli import app, application
from planner.hardware import load_cluster, profile_names
from tests.commands import planner

LAYOUT = ["--dp", "8", "--tp", "1", "--pp", "1", "--zero", "1", "--micro-batch", "1"]


def asked(*words: str):
    return CliRunner().invoke(app, [*words, "--json"])


def test_words_and_options_ask_the_same():
    positional = asked("recommend", "gpt2", "h100", "8", *LAYOUT)
    spelled = asked("recommend", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "4096", *LAYOUT)
    assert positional.exit_code == spelled.exit_code == 0
    assert json.loads(positional.stdout)["best"] == json.loads(spelled.stdout)["best"]
    assert positional.stderr == (
        "planner: no batch is given, so it is 4,096 sequences per step, about the 4M tokens of LLaMA 2 "
        "and 3's pretraining; "
        "--global-batch sets another\n"
    )
    assert spelled.stderr == ""


def test_a_refusal_is_one_line_whatever_there_was_to_note(tmp_path):
    """Of a config.json's length and of the batch: said beside an answer, not beside the reason why there is none."""
    config = {
        "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    ask = ["estimate", str(path), "--cluster", "dgx-h100", "--dp", "8"]
    refused = planner(*ask, "--tp", "3")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("planner: illegal layout: tp must divide the attention heads")
    assert refused.stderr.count("\n") == 1
    answered = planner(*ask)
    assert answered.returncode == 0
    (tmp_path / "seen.json").write_text(json.dumps({"text_config": config, "vision_config": {"hidden_size": 64}}))
    seen = planner("estimate", str(tmp_path / "seen.json"), *ask[2:], "--seq-len", "2048", "--global-batch", "8")
    assert (
        seen.stderr
        == f"planner: {tmp_path}/seen.json: its language model alone is counted, without the vision encoder; "
        "planner towers plans both\n"
    )
    length, batch = answered.stderr.splitlines()
    assert "2,048 tokens per sequence are its max_position_embeddings" in length
    assert "no batch is given, so it is 2,048 sequences per step" in batch


def test_a_folder_of_a_presets_name_is_not_taken_for_its_config(tmp_path):
    (tmp_path / "gpt2").mkdir()
    answered = planner("estimate", "gpt2", "--cluster", "dgx-h100", "--dp", "8", "--global-batch", "8", cwd=tmp_path)
    assert answered.returncode == 0
    assert answered.stderr == ""


def test_a_presets_name_on_the_hub_is_no_file_whose_length_would_be_the_longest():
    answered = planner("estimate", "meta-llama/Llama-3.1-8B", "--cluster", "dgx-h100", "--dp", "8")
    assert answered.returncode == 0
    assert answered.stdout.startswith("llama3.1-8b on 8 GPUs")
    assert "max_position_embeddings" not in answered.stderr


@pytest.mark.parametrize("command", ["estimate", "simulate", "partition"])
def test_a_command_for_one_layout_takes_the_cluster_as_a_word(command):
    layout = ["--pp", "2", "--global-batch", "8"]
    positional = asked(command, "gpt2", "dgx-h100", *layout)
    assert positional.exit_code == 0
    assert positional.stdout == asked(command, "gpt2", "--cluster", "dgx-h100", *layout).stdout


def test_an_anchor_given_twice_is_refused():
    twice = asked("recommend", "gpt2", "h100", "8", "--anchor", "a.csv", "--anchor=b.csv").exception
    assert str(twice) == "--anchor is given twice; allowed: once, a file with all the runs"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt2", "h100", "8", "--gpus", "16"], "gpus is given twice, as '8' and as --gpus 16; give one of the two"),
        (["gpt2", "h100", "8", "--cluster", "x"], "cluster is given twice, as 'h100' and as --cluster x"),
        (["gpt2", "h100", "eight"], "gpus is 'eight'; allowed: a whole number"),
        (["gpt2", "h100", "1000000000"], "gpus is '1000000000'; allowed: a whole number from 1 to 10000000"),
        (["gpt2", "h100", "9" * 5000], "gpus is '999"),
        (["gpt2", "h100", "²"], "gpus is '²'; allowed: a whole number"),
        (["gpt2", "h100", "-8"], "No such option: -8"),
        (["gpt2", "h100"], "--gpus is missing"),
        (["gpt2"], "--cluster is missing"),
        (
            ["gpt2", "a100", "8"],
            "unknown cluster 'a100'; allowed: a100-pcie, a100-roce, dgx-a100-40gb, dgx-a100-80gb, ",
        ),
        (["gpt2", "v100-sxm-32gb", "8"], "unknown cluster 'v100-sxm-32gb'; allowed: dgx-1-v100, dgx-2-v100, jean-zay"),
    ],
)
def test_what_is_said_of_wrong_words(words, said):
    result = asked("recommend", *words)
    assert result.exit_code != 0
    error = result.exception
    assert said in (str(error) if isinstance(error, InputError) else result.output.replace("\n", " "))


def test_a_gpu_names_its_makers_own_server_or_the_only_one_that_has_it():
    for gpu, server in (
        ("h100", "dgx-h100"), ("H200", "dgx-h200"), ("h20", "hgx-h20"), ("gb200", "gb200-nvl72"),
        ("mi300x", "mi300x-server"), ("l4", "l4-pcie"), ("4090", "rtx-4090-server"), ("RTX 4090", "rtx-4090-server"),
        ("a100-40gb", "dgx-a100-40gb"), ("a100-80gb", "dgx-a100-80gb"), ("h100-sxm", "dgx-h100"),
        ("a100-sxm-40gb", "dgx-a100-40gb"), ("h100-sxm-96gb", "grand-teton-h100"), ("cpu-generic", "workstation-cpu"),
    ):  # fmt: skip
        assert load_cluster(gpu) == load_cluster(server)
    for gpu in ("", "1", "2", "a100", "v100"):
        with pytest.raises(UnknownNameError):
            load_cluster(gpu)


def test_every_gpu_of_a_cluster_names_one_that_has_it():
    """A GPU as `planner clusters` names it; but for the V100, which two of NVIDIA's own servers have."""
    gpus = {load_cluster(name).accelerator.name for name in profile_names("clusters")}
    for gpu in gpus - {"v100-sxm-32gb"}:
        assert load_cluster(gpu).accelerator.name == gpu


NETWORK = ("network", "gpt2", "h100", "16")
FIGURE = ("--figure", "accelerator.memory_gib=60")
SHARE = ("--offload-fraction", "0.5")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*NETWORK, "--global-batch", "0"), "global_batch is 0; allowed: a whole number from 1"),
        ((*NETWORK, *SHARE), "offload_fraction is 0.5; allowed: with allow_offload"),
        ((*NETWORK, *FIGURE, *FIGURE), "--figure accelerator.memory_gib is given 2 times; allowed: once"),
        (("estimate", "gpt2", "h100", "8", *SHARE), "offload_fraction is 0.5; allowed: with offload_optimizer"),
        ((*NETWORK, "--headroom", ""), "--headroom is ''; allowed: a number of GiB, such as 8GiB"),
        ((*NETWORK, "--max-memory", "8GB"), "--max-memory is '8GB'; allowed: a number of GiB, such as 8GiB"),
        (("clusters", "2"), "unknown cluster '2'; nearest: "),
        (("recommend", "gpt2", "h100", "--gpus", "6_4"), "--gpus is '6_4'; allowed: a whole number"),
        (("estimate", "gpt2", "h100", "--dp", "1_6"), "--dp is '1_6'; allowed: a whole number"),
        ((*NETWORK, "--fit-chance", "0.9_0"), "--fit-chance is '0.9_0'; allowed: a number"),
        ((*NETWORK, "--max-memory", "7_0"), "--max-memory is '7_0'; allowed: a number of GiB"),
        ((*NETWORK, "--batch-tokens", "1_0M"), "--batch-tokens is '1_0M'; allowed: a number of tokens"),
        ((*NETWORK, "--seq-len", "1_0k"), "--seq-len is '1_0k'; allowed: a whole number of tokens"),
        ((*NETWORK, "--figure", "accelerator.memory_gib=6_0"), "--figure is 'accelerator.memory_gib=6_0'; allowed: "),
    ],
)
def test_what_is_said_names_the_option(words, said):
    result = CliRunner().invoke(app, words)
    error = result.exception
    assert said in (str(error) if isinstance(error, PlannerError) else result.output.replace("\n", " "))


def paths() -> list[tuple[str, str, tuple[str, ...]]]:
    """Every command with every option and argument of files or folders: how it is named, and its words before "".

    Before an argument stand words for those that come before it.
    """
    found = []
    for command in app.registered_commands:
        before: tuple[str, ...] = ()
        for name, parameter in inspect.signature(command.callback, eval_str=True).parameters.items():
            kind, declared = get_args(parameter.annotation) or (None, None)
            argument = isinstance(declared, ArgumentInfo)
            if {Path, list[Path]} & {kind, *get_args(kind)} and isinstance(declared, ArgumentInfo | OptionInfo):
                names = [text for text in (declared.default, *(declared.param_decls or ())) if isinstance(text, str)]
                every = [declared.metavar or name] if argument else names or [f"--{name.replace('_', '-')}"]
                found += [(str(command.name), " / ".join(every), before if argument else (one,)) for one in every]
            before += ("x",) if argument else ()
    return found


def test_options_and_arguments_of_files_are_found():
    some = "calibrate --profile, calibrate --profiles, train --checkpoint, probe --write, sweep -o, recommend --save"
    assert {tuple(one.split()) for one in f"{some}, calibrate --from".split(", ")} <= {(c, *w) for c, _, w in paths()}
    arguments = {("pareto", "results"), ("compare", "plan|cluster"), ("mixed", "groups"), ("calibrate", "paths")}
    assert arguments <= {(command, name) for command, name, _ in paths()}


@pytest.mark.parametrize("command", sorted({command for command, _, _ in paths()}))
def test_an_empty_text_names_no_file(command, tmp_path, monkeypatch):
    """To Python an empty path is the working directory, so a shell's unset variable would write there."""
    monkeypatch.chdir(tmp_path)
    alone = application((command,))
    for name, words in ((name, words) for one, name, words in paths() if one == command):
        for given in ([*words, ""], *([f"{word}="] for word in words if word.startswith("--"))):
            refused = CliRunner().invoke(alone, [command, *given])
            assert isinstance(refused.exception, InputError)
            assert str(refused.exception) == f"{name} is ''; allowed: the path of a file or folder"
    assert not [*tmp_path.iterdir()]
