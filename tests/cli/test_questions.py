"""Numbers as people write them: tokens per step, lengths of sequences, lists of values, what must not be chosen."""

import json

import pytest
from typer.testing import CliRunner

from planner.base.errors import InputError
from planner.base.units import parse_count, parse_length
from planner.cli import app
from planner.cli.options import StepBatch

ASKED = ["recommend", "gpt2-xl", "--cluster", "dgx-a100-80gb", "--gpus", "16", "--json"]


def answer(*options):
    result = CliRunner().invoke(app, [*ASKED, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [("32768", 32), ("40k", 32), ("0.1M", 96), ("131072", 128), ("50176", 49), ("128k", 128)],
)
def test_tokens_per_step_are_the_nearest_sequences_that_divide_well(tokens, sequences):
    assert StepBatch(batch_tokens=parse_count(tokens)).sequences(1024) == sequences


@pytest.mark.parametrize(
    ("ranks", "sequences"), [(1, 512), (64, 512), (96, 576), (100, 400), (56, 448), (6, 576), (1021, 512), (0, 512)]
)
def test_a_batch_has_the_odd_factor_of_the_gpus_that_share_it(ranks, sequences):
    assert StepBatch(batch_tokens=4e6).sequences(8192, ranks) == sequences
    assert StepBatch().sequences(8192, ranks) == sequences
    assert StepBatch(global_batch=500).sequences(8192, ranks) == 500


@pytest.mark.parametrize("tokens", [0.0, 1023.0, 1e7 * 1024 + 1024])
def test_a_batch_of_too_few_or_too_many_tokens_is_told_its_limits_in_their_units(tokens):
    assert StepBatch(batch_tokens=1024.0).sequences(1024) == 1
    assert StepBatch(batch_tokens=1e7 * 1024).sequences(1024) > 0
    with pytest.raises(InputError, match="allowed: from one sequence of 1024 tokens to 10,000,000 sequences"):
        StepBatch(batch_tokens=tokens).sequences(1024)


def test_no_pipeline_for_a_batch_that_replicas_can_share():
    one = json.loads(CliRunner().invoke(app, ["recommend", "llama3-8b", "h100", "96", "--json"]).stdout)
    assert (one["global_batch"], one["best"][0]["layout"]["pp"], one["best"][0]["layout"]["dp"]) == (576, 1, 48)


def test_a_length_in_thousands_is_of_1024():
    assert [parse_length(text) for text in ("4096", "8k", "128K", " 32k ")] == [4096, 8192, 131072, 32768]
    assert parse_length("1M") == 1024 * parse_length("1k") == 1048576
    with pytest.raises(ValueError, match="invalid literal"):
        parse_length("1.5k")


def test_a_batch_is_given_once():
    assert answer("--batch-tokens", "32768")["global_batch"] == 32
    result = CliRunner().invoke(app, [*ASKED, "--global-batch", "8", "--batch-tokens", "4M"])
    assert (result.exit_code, str(result.exception)) == (1, "give --global-batch or --batch-tokens: one of the two")


def test_a_batch_far_from_the_tokens_asked_for_says_so():
    ask = [*ASKED, "--top", "1", "--batch-tokens"]
    far, near = (CliRunner().invoke(app, [*ask, tokens]).stderr for tokens in ("36000", "32768"))
    assert "the batch is" not in near
    assert "the batch is 32 sequences, 0.0328M tokens; asked: 0.036M" in " ".join(far.split())


def test_lists_and_what_is_left_out():
    listed = answer("--global-batch", "32", "--dp", "4,8", "--pp", "2", "--pp", "4", "--top", "50")
    assert {one["layout"]["dp"] for one in listed["best"]} <= {4, 8}
    assert {one["layout"]["pp"] for one in listed["best"]} <= {2, 4}
    left = answer("--global-batch", "32", "--not", "dp=16", "--exclude", "cp", "--top", "50")
    assert {one["layout"]["dp"] for one in left["best"]}.isdisjoint({16})
    assert {one["layout"]["cp"] for one in left["best"]} == {1}
