"""Where no batch is given, or one in tokens, every command takes one that its GPUs can share."""

import pytest
from typer.testing import CliRunner

import planner
from planner.base.errors import InputError
from planner.cli import app
from planner.cli.notes import note
from planner.cli.options import StepBatch

ASKED = "llama3-8b", "h100"


@pytest.mark.parametrize("tokens", [[], ["--batch-tokens", "4M"]], ids=["none", "4M"])
@pytest.mark.parametrize(("words", "answers", "batch"), [
    (["network", *ASKED, "24"], "planner.api.limits.network", 576),
    (["partition", *ASKED, "24", "--pp", "4"], "planner.api.compared.partition", 576),
    (["sites", *ASKED, "--sites", "3x24"], "planner.api.sites.training_on_sites", 432),
    (["sites", *ASKED, "--sites", "24,24,8"], "planner.api.sites.training_on_sites", 448),
    (["sites", *ASKED, "--sites", "1000x8"], "planner.api.sites.training_on_sites", 1000),
    (["mixed", "llama3-8b", "FILE"], "planner.api.sites.training_on_groups", 576),
])  # fmt: skip
def test_it_divides(words, answers, batch, tokens, tmp_path, monkeypatch):
    path = tmp_path / "groups.toml"
    groups = "".join(f'[[groups]]\ncluster = "{c}"\ngpus = {n}\n' for c, n in (("dgx-h100", 24), ("dgx-h200", 8)))
    path.write_text(f'name = "both"\n{groups}')

    def asked(*_, **arguments):
        raise InputError(f"batch {arguments.get('batch') or arguments.get('global_batch')}")

    monkeypatch.setattr(answers, asked)
    result = CliRunner().invoke(app, [str(path) if word == "FILE" else word for word in words] + tokens)
    assert str(result.exception) == f"batch {batch}"


@pytest.mark.parametrize(("length", "said"), [(10_485_760, "1 sequence per step"), (2_097_152, "2 sequences per step")])
def test_one_sequence_is_one(length, said, monkeypatch):
    told = []
    monkeypatch.setattr("planner.cli.options.note", told.append)
    StepBatch().sequences(length)
    assert f"it is {said}, about" in told[0]


def test_python_takes_the_same(monkeypatch):
    def asked(*_, **arguments):
        raise InputError(f"batch {arguments['batch']}")

    monkeypatch.setattr("planner.api.limits.held_request", asked)
    with pytest.raises(InputError, match="batch 576"):
        planner.network("llama3-8b", "dgx-h100", gpus=24)


def test_fewest_takes_for_each_number_of_gpus_what_time_takes(monkeypatch):
    def asked(*_, **arguments):
        raise InputError(f"{[arguments['batch'](gpus) for gpus in (8, 16, 24)]}")

    monkeypatch.setattr("planner.api.training.fewest_gpus", asked)
    result = CliRunner().invoke(app, ["fewest", *ASKED, "--batch-tokens", "4M"])
    assert str(result.exception) == "[512, 512, 576]"


def test_sequences_are_of_whole_units():
    assert StepBatch().sequences(8192, 8, 7) == 448
    assert StepBatch(batch_tokens=49.0).sequences(1, 8, 7) == 49


def test_a_command_tells_its_own_notes_alone():
    note("of what this process did before")
    result = CliRunner().invoke(app, ["estimate", *ASKED, "8", "--global-batch", "8"])
    assert result.exit_code == 0
    assert "before" not in result.output


@pytest.mark.parametrize("sites", ["0", "2x0", "0x64"])
def test_sites_have_gpus(sites):
    result = CliRunner().invoke(app, ["sites", *ASKED, "--sites", sites])
    assert isinstance(result.exception, InputError)
    assert "--sites is" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sites gpt2 h100 --sites 2x8 --global-batch 64", "none ends, for failures leave too little time to train"),
        ("fastest gpt2 h100 --strategies data --max-gpus 8", "fails too often to end; give a longer --mtbf-hours"),
        ("explain gpt2 h100 16 --global-batch 64", "It never ends: failures leave less than a thousandth of the time"),
    ],
)
def test_where_failures_let_nothing_end_that_is_the_reason(words, said):
    result = CliRunner().invoke(app, [*words.split(), "--tokens", "1e10", "--mtbf-hours", "0.001"])
    assert said in f"{result.output} {result.exception}"
