"""`planner time`, `fewest`, `fastest`, `paper`, `explain` as a user meets them."""

import json
from pathlib import Path

import pytest

import planner as api
from planner.models import load_model
from planner.models.flops import causal_share
from planner.report.plain_table import plain_text
from planner.report.training import count_text
from tests.commands import planner

ROOT = Path(__file__).parents[2]
TIME = ["time", "llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "64"]
FAST = ["fastest", "llama-13b", "--cluster", "dgx-a100-80gb", "--max-gpus", "128"]
FEWEST = ["fewest", "llama-13b", "--cluster", "dgx-a100-80gb", "--tokens", "1e11", "--global-batch", "512"]
BATCH_TOKENS = ("--batch-tokens", "1M")
EXPLAIN = ["explain", "llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "64", "--global-batch", "512"]


def test_time_prints_days_laws_and_every_assumption():
    done = planner(*TIME, "--tokens", "3e11", "--price", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in (
        "Training on 300B tokens takes",
        "goodput",
        "USD",
        "MWh",
        "zhang-2024",
        "extrapolation",
        "--mtbf-hours",
        "assumed",
    ):
        assert text in done.stdout


def test_time_json():
    record = json.loads(planner(*TIME, "--loss", "2.2", "--json").stdout)
    assert record["goal"]["loss_nats"] == pytest.approx(2.2)
    assert record["run"]["tokens"] > record["goal"]["tokens_at_small_batch"]
    assert record["run"]["cost_usd"] is None
    assert record["layout"]["fits"] is True
    assert record["assumptions"]["mtbf_hours"]["value"] == 50677


def test_time_takes_a_batch_by_the_other_commands_name_too():
    names = ("--batch", "--global-batch")
    short, long = (planner(*TIME, "--tokens", "1e10", name, "48", "--json") for name in names)
    assert json.loads(long.stdout)["run"]["global_batch"] == 48, long.stderr
    assert short.stdout == long.stdout


def test_time_takes_a_critical_batch_as_people_write_it():
    short, long = (planner(*TIME, "--tokens", "1e10", "--critical-batch", text, "--json") for text in ("2M", "2e6"))
    assert json.loads(long.stdout)["goal"]["critical_batch_tokens"] == 2e6, long.stderr
    assert short.stdout == long.stdout, short.stderr


def test_time_says_that_a_job_of_failures_alone_never_ends():
    done = planner(*TIME, "--tokens", "1e11", "--batch", "512", "--mtbf-hours", "1", "--restart-minutes", "10")
    never = "Training on 100B tokens never ends: failures leave less than a thousandth of the time to train"
    assert never in " ".join(done.stdout.split()), done.stderr
    assert "inf" not in done.stdout.split()
    assert "GPU-hours" not in done.stdout
    assert done.returncode == 1
    seldom = planner(*TIME, "--tokens", "1e11", "--batch", "512", "--mtbf-hours", "10", "--restart-minutes", "10")
    assert "Training on 100B tokens takes " in seldom.stdout
    assert seldom.returncode == 0


@pytest.mark.parametrize("asked", ["sites llama3-8b h100 --sites 2x8 --global-batch 64", "largest --gpus 8"])
def test_a_training_that_never_ends_is_exit_code_1(asked):
    """A script that reads exit codes must notice, as of recommend and fewest."""
    assert planner(*asked.split(), "--mtbf-hours", "0.001").returncode == 1


def test_no_bubble_binds_a_layout_without_a_pipeline():
    ask = ("--max-gpus", "7", "--fit-chance", "0.93", "--json")
    (found,) = json.loads(planner("fastest", "llama3-8b", "h100", *ask).stdout)["results"]
    (point,) = found["time_against_gpus"]
    assert point["layout"]["layout"]["pp"] == 1
    assert point["binding"] == "a pipeline without its bubble"


def test_fastest_takes_the_cluster_as_a_word():
    ask = ("--max-gpus", "8", "--tokens", "1e9", "--json")
    word, option = planner("fastest", "gpt2", "h100", *ask), planner("fastest", "gpt2", "--cluster", "h100", *ask)
    assert word.returncode == 0, word.stderr
    assert word.stdout == option.stdout


def test_time_takes_a_batch_in_tokens():
    tokens, sequences = (planner(*TIME, "--tokens", "1e10", *b, "--json") for b in (BATCH_TOKENS, ("--batch", "512")))
    assert tokens.stdout == sequences.stdout, tokens.stderr


def test_network_takes_the_names_of_frameworks_that_recommend_takes():
    """Also the short name of an export; and the headline says what a GPU has of its node's network."""
    done = planner("network", "llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "16", "--global-batch", "32", "--tp",
                   "8", "--pp", "2", "--framework", "megatron")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Gb/s per GPU)" in " ".join(done.stdout.split())
    listed = planner("clusters").stdout
    assert "Networks, for --network: " in listed
    assert "infiniband-hdr" in listed


def test_fewest_shows_what_was_tried_where_none_keeps_the_deadline():
    done = planner(*FEWEST, "--days", "0.01", "--max-gpus", "32")
    assert done.returncode == 1
    assert "no number of GPUs tried up to 32 keeps 0.01 days: the shortest takes" in " ".join(done.stdout.split())
    assert "GPU-hours" in done.stdout


def test_fewest_names_what_fits_and_what_keeps_a_deadline():
    done = planner(*FEWEST, "--days", "30")
    assert done.stdout == planner(*FEWEST, "--deadline", "30").stdout
    assert done.returncode == 0, done.stderr
    for text in (
        "GPUs stay within 30 days by the prediction; 24 do with a chance of 90 %",
        "the fewest GPUs on which a layout fits: ",
        "with a chance of 80 %",
        "nothing fits",
    ):
        assert text in done.stdout
    record = json.loads(planner(*FEWEST, "--days", "30", "--price", "2", "--json").stdout)
    tried = {row["gpus"]: row for row in record["tried"]}
    keeps = tried[record["fewest_that_keep"]]
    assert keeps["days"] <= 30 < min(row["days"] for g, row in tried.items() if row["fits"] and g < keeps["gpus"])
    assert keeps["cost_usd"] == pytest.approx(2 * keeps["gpu_hours"])
    assert all(not row["fits"] for g, row in tried.items() if g < record["fewest_that_fit"])
    assert " causal MFU " in done.stdout
    assert f" {keeps['mfu'] * causal_share(load_model('llama-13b')):.1%} " in done.stdout


def test_one_sequence_is_one():
    done = planner("time", "gpt2", "--cluster", "dgx-h100", "--gpus", "1", "--tokens", "1M", "--batch", "1")
    assert " batch 1 sequence of 1,024 tokens" in " ".join(done.stdout.split())


def test_a_note_that_every_number_of_gpus_would_give_is_given_once():
    done = planner(*FEWEST[:-2], "--batch-tokens", "2.5M", "--max-gpus", "32", "--pp", "2", "--tp", "4")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("planner: the batch is ") == len(set(done.stderr.splitlines())) > 0


def test_fastest_takes_other_nics():
    days = [json.loads(planner(*FAST, "--tp", "1", "--nics-per-node", n, "--json").stdout) for n in ("1", "8")]
    slow, fast = (one["results"][0]["shortest"]["days"] for one in days)
    assert fast < slow


def test_fastest_prints_fronts_and_sets_networks_side_by_side():
    done = planner(
        *FAST, "--network", "infiniband-hdr", "--network", "ethernet-25g", "--node-size", "8", "--node-size", "0"
    )
    assert done.returncode == 0, done.stderr
    for text in ("side by side", "Shortest time", "Time against GPUs", "Time against cost", "<- knee", "what binds"):
        assert text in done.stdout
    assert "layout searched, --strategies 3d" in done.stdout


def test_fastest_shows_the_mfu_that_other_commands_show_first():
    found = api.fastest("llama3-8b", ["dgx-h100"], max_gpus=8, tp=1, pp=1)
    mfu = found.to_dict()["results"][0]["shortest"]["layout"]["mfu"]
    shown = plain_text(*found.lines, width=200)
    tokens = count_text(found.to_dict()["results"][0]["goal"]["tokens_at_small_batch"])
    assert f"Shortest time to the loss of {tokens} tokens at small batches: " in shown, "time processes its tokens"
    assert " causal MFU " in shown
    assert f" {mfu * causal_share(load_model('llama3-8b')):.1%} " in shown


def test_fastest_json():
    record = json.loads(planner(*FAST, "--strategies", "3d,data", "--any-framework", "--json").stdout)
    first, data = record["results"]
    assert first["shortest"]["days"] <= data["shortest"]["days"]
    assert first["time_against_gpus"][-1]["gpus"] <= 128
    assert {"binding", "gain_if_relaxed_twofold", "layout", "goodput"} <= set(first["shortest"])


def test_paper_and_explain():
    done = planner("paper", "narayanan-2021")
    assert done.returncode == 0, done.stderr
    assert "7 of 7 claims agree (7 read)." in done.stdout
    assert json.loads(planner("paper", "seq1f1b", "--json").stdout)["claims"]
    listed = json.loads(planner("paper", "--json").stdout)
    assert len(listed["systems"]) == 24
    assert "lamy-poirier-2021" in planner("paper").stdout
    done = planner(*EXPLAIN)
    assert done.returncode == 0, done.stderr
    for text in ("matrix peak", "elasticity", "intensity", "threshold"):
        assert text in done.stdout
    assert json.loads(planner(*EXPLAIN, "--json").stdout)["effects"]


def test_json_keys_are_documented():
    documented = (ROOT / "docs" / "training-time.md").read_text() + (ROOT / "docs" / "papers.md").read_text()
    time = json.loads(planner(*TIME, "--json").stdout)
    fast = json.loads(planner(*FAST, "--json").stdout)["results"][0]
    explained = json.loads(planner(*EXPLAIN, "--json").stdout)
    paper = json.loads(planner("paper", "narayanan-2021", "--json").stdout)
    keys = [*time["goal"], *time["run"], *fast, *fast["time_against_gpus"][0], *paper, *paper["claims"][0]]
    keys += [*explained["effects"][0], *explained["network_operations"][0], "accuracy"]
    for key in keys:
        assert f"`{key}`" in documented, key
    assert time["accuracy"]


def test_explain_counts_repairs_among_failures():
    usual, repaired = (
        {x["name"]: x["training"] for x in json.loads(planner(*EXPLAIN, *more, "--json").stdout)["effects"]}
        for more in ((), ("--repair-hours", "24"))
    )
    assert repaired["time between failures"] < 2 * usual["time between failures"] < 0


def test_laws():
    assert (
        planner("laws", "gpt3-175b", "--tokens", "300B").stdout
        == planner("laws", "gpt3-175b", "--tokens", "300e9").stdout
    )
    done = planner("laws", "gpt3-175b", "--tokens", "300e9")
    assert done.returncode == 0, done.stderr
    for text in ("zhang-2024", "extrapolated", "besiroglu-2024", "kaplan-2020"):
        assert text in done.stdout
    record = json.loads(planner("laws", "--json").stdout)
    assert set(record) == {"loss", "critical_batch", "compute_optimal", "replicas"}
    assert "charles-2025" in planner("laws").stdout
    said = json.loads(planner("laws", "gpt3-175b", "--tokens", "300e9", "--json").stdout)
    assert said["critical_batch"]["lamy-poirier-2021"]["tokens"] == pytest.approx(3.2e6, rel=0.01)


def test_time_on_preemptible_machines_says_what_going_on_takes():
    asked = (*TIME, "--tokens", "1e11", "--batch", "512", "--mtbf-hours", "500", "--repair-hours", "6", "--price", "1")
    run = json.loads(planner(*asked, "--json").stdout)["run"]
    assert run["elastic"]["days"] < run["days"]
    assert run["elastic"]["days"] < run["elastic"]["days_p90"]
    assert run["elastic"]["cost_usd"] == run["elastic"]["gpu_hours"] < 64 * 24 * run["elastic"]["days"]
    assert "going on meanwhile with whole replicas" in planner(*asked).stdout
    small = planner(*asked, "--gpus", "4", "--json")
    assert json.loads(small.stdout)["run"]["elastic"]["days"] > 0, small.stderr


def test_time_with_checkpoints_in_memory_spares_and_stragglers():
    asked = (*TIME, "--tokens", "1e11", "--batch", "512")
    slow = ("--straggler-hours", "2000", "--straggler-minutes", "60", "--straggler-slows", "0.3")
    done = planner(*asked, "--host-copies", "2", "--repair-hours", "200", "--spare-nodes", "1", *slow).stdout
    for said in (
        "stops the training for",
        "a neighbour has it",
        "it waits for a node",
        "beside a straggler",
        "fewest GPU-hours",
    ):
        assert said in " ".join(done.split()), said
    plain = planner(*asked).stdout
    for said in ("not counted unless given: --host-copies, ", "of 2,000 drawn runs half end within"):
        assert said in " ".join(plain.split()), said
    assert not any(line.startswith("--host-copies") for line in plain.splitlines())


BAD = [
    ([*TIME, "--tokens", "0"], "tokens is 0"),
    ([*TIME, "--tokens", "nan"], "tokens is nan"),
    ([*TIME, "--tokens", "many"], "--tokens"),
    ([*TIME, "--loss", "1.0"], "allowed: above"),
    ([*TIME, "--loss", "2", "--tokens", "1e9"], "one of them"),
    ([*TIME, "--batch", "0"], "batch is 0"),
    ([*TIME[:-1], "0"], "gpus is 0"),
    ([*TIME, "--mtbf-hours", "0"], "--mtbf-hours is 0"),
    ([*TIME, "--restart-minutes", "-1"], "--restart-minutes is -1"),
    ([*TIME, "--checkpoint-bytes", "0"], "--checkpoint-bytes is 0"),
    ([*TIME, "--storage-gbyte-per-s", "0"], "--storage-gbyte-per-s is 0"),
    ([*TIME, "--host-copies", "1.5"], "--host-copies is 1.5; allowed: whole, 0 to 2 "),
    ([*TIME, "--host-copies", "nan"], "--host-copies is nan; allowed: whole, 0 to 2 "),
    ([*TIME, "--spare-nodes", "inf", "--repair-hours", "1"], "--spare-nodes is inf; allowed: whole, 0 to 1000 "),
    ([*TIME, "--spare-nodes", "2"], "--spare-nodes is 2, which needs --repair-hours above 0"),
    ([*TIME, "--copy-gbyte-per-s", "50"], "--copy-gbyte-per-s is 50, which needs --host-copies above 0"),
    (
        [*TIME, "--host-copies", "1", "--neighbour-gbyte-per-s", "5"],
        "--neighbour-gbyte-per-s is 5, which needs --host-copies 2",
    ),
    ([*TIME, "--straggler-slows", "0.1"], "--straggler-slows is 0.1, which needs --straggler-hours above 0"),
    ([*TIME, "--repair-hours", "-1"], "--repair-hours is -1; allowed: 0 to 100000 hours"),
    ([*TIME, "--price", "-1"], "--price is -1; allowed: 0 to 1e+06 USD per GPU-hour (price_usd_per_hour)"),
    ([*TIME, "--power-w", "nan"], "--power-w is nan"),
    ([*TIME, "--site-factor", "0.5"], "--site-factor is 0.5"),
    ([*TIME, "--loss-law", "chinchilla"], "hoffmann-2022"),
    ([*TIME, "--critical-batch-law", "zhang"], "zhang-2024"),
    ([*TIME, "--critical-batch", "0"], "--critical-batch is 0"),
    ([*TIME, "--critical-batch", "some"], "--critical-batch is 'some'; allowed: a number of tokens, such as 4M"),
    (
        [*TIME, "--tokens", "1000", "--batch", "512"],
        "tokens is 1,000; allowed: from one batch on, 512",
    ),
    ([*TIME, "--batch-rule", "free"], "cap, overhead"),
    ([*TIME, "--tp", "0"], "tp is 0"),
    ([*TIME, "--recompute", "some"], "selective"),
    (["time", "x-160", "--cluster", "dgx-a100-80gb", "--gpus", "8"], "fits in memory"),
    ([*TIME, "--batch", "4", "--batch-tokens", "1M"], "one of the two"),
    ([*FEWEST, "--days", "0"], "days is 0"),
    ([*FEWEST, "--days", "nan"], "days is nan"),
    ([*FEWEST, "--max-cost", "10"], "no price; give --price"),
    ([*FEWEST, "--max-gpus", "0"], "--max-gpus is 0"),
    ([*FEWEST, "--max-gpus", "1"], "nothing runs on up to 1 GPU;"),
    ([*FEWEST, "--tp", "7", "--max-gpus", "64"], "tp must divide"),
    ([*FAST[:-1], "0"], "max-gpus is 0"),
    ([*FAST[:-1], "1"], "more GPUs"),
    ([*FAST, "--max-cost", "10"], "--price"),
    ([*FAST, "--max-cost", "1.4X", "--price", "2"], "--max-cost is '1.4X'; allowed: a number of USD, such as 20000 or"),
    ([*FAST, "--max-cost", "0.001k", "--price", "2"], "max-cost is 1 USD; allowed"),
    ([*FAST, "--max-cost", "1", "--price", "2"], "max-cost is 1 USD; allowed: about "),
    ([*FAST, "--strategies", "4d"], "data+pipeline"),
    ([*FAST, "--strategies", "3d:1f2b"], "1f1b"),
    ([*FAST, "--node-size", "-1"], "--node-size is -1"),
    ([*FAST, "--network", "ether"], "ethernet"),
    (["fastest", "llama-13b"], "--cluster"),
    (["paper", "lamy"], "lamy-poirier-2021"),
    (["paper", "--html", "a.html"], "a paper's name"),
    (["paper", "zero", "--html", "a.txt"], ".html"),
    (["laws", "gpt9"], "gpt"),
    (["laws", "--tokens", "3"], "a model as well"),
    ([*TIME, "--batch", "9999", "--batch-rule", "cap"], "up to the critical"),
    ([*FAST, "--critical-batch", "1", "--batch-rule", "cap"], "at least a sequence"),
    ([*EXPLAIN[:-1], "0"], "--global-batch is 0"),
    (["explain", "gpt3-175b", "--cluster", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "8"], "more GPUs"),
]


@pytest.mark.parametrize(("args", "expected"), BAD, ids=[" ".join(a[-2:]) for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(args, expected):
    done = planner(*args)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert expected in done.stderr


@pytest.mark.parametrize(("typed", "said"), [
    ("fewest llama3-8b h100 --deadline 30d", "planner: --deadline is '30d'; allowed: a number"),
    ("fewest llama3-8b h100 --days=30d", "planner: --days is '30d'; allowed: a number"),
    ("recommend llama3-8b h100 8 --fit-chance 2", "planner: --fit-chance is 2.0; allowed: a number from 0.01"),
    ("recommend llama3-8b h100 8 --not foo=3", "planner: --not is 'foo=3'; allowed: schedule"),
    ("recommend llama3-8b h100 8 --exclude foo=3", "planner: --exclude is 'foo=3'; allowed: schedule"),
    ("recommend llama3-8b h100 0", "planner: gpus is 0; allowed: "),
    ("recommend llama3-8b h100 8 --why mb=0", "planner: --why has micro-batch '0'; allowed: a whole number"),
    ("recommend llama3-8b h100 8 --why foo=3", "planner: unknown choice of a layout 'foo'; allowed: attention, capa"),
    ("estimate llama3-8b h100 --recompute-layers 2 --global-batch 8",
     "planner: illegal layout: recompute-layers needs recompute full; got recompute none, recompute-layers 2"),
])  # fmt: skip
def test_a_fault_names_the_option_that_was_typed(typed, said):
    done = planner(*typed.split())
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(said), done.stderr


def test_tokens_that_are_no_number():
    done = planner(*TIME, "--tokens", "15X")
    assert done.returncode == 2
    assert done.stderr == "planner: --tokens is '15X'; allowed: a number of tokens, such as 4M\n"


NETWORK = ["network", "llama-7b", "--cluster", "dgx-a100-80gb", "--gpus", "16", "--global-batch", "32"]


def test_network_prints_the_curve_and_writes_pictures(tmp_path):
    done = planner(*NETWORK, "--price", "2", "--network-price", "0.01", "--svg", str(tmp_path / "n.svg"))
    assert done.returncode == 0, done.stderr
    for text in ("within 5 % of the fastest", "NICs per node", "USD/M", "ZeRO 3", "Is the fast network needed?"):
        assert text in " ".join(done.stdout.split())
    assert "bandwidth (Gb/s per node)" in (tmp_path / "n.svg").read_text()


def test_network_keys_are_documented_and_its_commands_give_its_figures():
    documented = (ROOT / "docs" / "network.md").read_text()
    record = json.loads(planner(*NETWORK, "--json").stdout)
    keys = [*record, *record["curve"][0], *record["strategies"][0], *record["first_question"][0]]
    for key in keys:
        assert f"`{key}`" in documented, key
    for way in record["first_question"]:
        found = json.loads(planner(*way["command"].split()[1:], "--json").stdout)
        assert found["best"][0]["step_time_s"] == pytest.approx(way["step_time_s"])


def test_a_papers_question_beside_ours():
    record = json.loads(planner("fastest", "x-160", "--paper", "lamy-poirier-2021", "--json").stdout)
    assert record["published_days"] == 6.93
    assert sum(p["paper_days"] for p in record["parts"]) == pytest.approx(record["paper_days"])
    ours = sum(p["ours_days"] for p in record["parts"]) + record["failures_and_checkpoints_days"]
    assert ours == pytest.approx(record["ours"]["days"])
    assert [t["days"] > 0 for t in record["towards_today"]] == [True] * 5
    for args, text in ((["gpt2"], "x-160"), (["x-160", "--max-gpus", "8"], "settled by --paper")):
        done = planner("fastest", *args, "--paper", "lamy-poirier-2021")
        assert done.returncode == 2
        assert text in done.stderr


def test_a_papers_own_model_of_costs_on_any_cluster():
    asked = ["fastest", "x-160", "--paper", "lamy-poirier-2021", "--cluster", "dgx-a100-80gb"]
    asked += ["--network", "infiniband-hdr", "--node-size", "16", "--strategies", "3d,3d:improved"]
    record = json.loads(planner(*asked, "--json").stdout)
    baseline, improved = record["results"]
    assert improved["gpus"] == 38640  # the paper's own
    assert improved["days"] == pytest.approx(6.93, rel=0.02)
    assert baseline["days"] / improved["days"] == pytest.approx(2.0, rel=0.1)  # its abstract
    assert improved["flop_per_byte"]["pipeline"] > improved["threshold_flop_per_byte"]["network"]
    same = api.fastest("x-160", api.Cluster("dgx-a100-80gb", network="infiniband-hdr",
                       figures={"gpus_per_node": 16, "nics_per_node": 16}), paper="lamy-poirier-2021",
                       strategies=["3d:improved"])  # fmt: skip
    assert same.to_dict()["results"][0]["days"] == improved["days"]
    few = json.loads(planner(*asked, "--max-gpus", "1000", "--json").stdout)["results"]
    assert all(one["gpus"] <= 1000 and one["days"] > 200 for one in few)
    for more, text in ((["--strategies", "3d:zb"], "3d:improved"), (["--tokens", "1e12"], "--tokens is given")):
        done = planner(*asked, *more)
        assert done.returncode == 2
        assert text in done.stderr
    with pytest.raises(api.InputError, match="tokens is given, and settled by paper"):
        api.fastest("x-160", "dgx-a100-80gb", paper="lamy-poirier-2021", tokens=1e12)


def test_a_strategys_schedule_is_the_users_word():
    """Megatron-Core runs 1f1b but no modular pipeline; both may be asked for, and a second word is refused."""
    asked = ["fastest", "x-32", "--cluster", "dgx-a100-80gb", "--max-gpus", "64", "--strategies"]
    found = json.loads(planner(*asked, "3d:1f1b,3d:modular", "--json").stdout)["results"]
    assert [one["shortest"]["layout"]["layout"]["schedule"] for one in found] == ["1f1b", "modular"]
    assert "settled by strategy 3d:1f1b" in planner(*asked, "3d:1f1b", "--schedule", "interleaved").stderr


def test_more_copies_than_one_gpu_has_replicas():
    """The first number that is tried has no replica to copy: it divided by no shards, and ended in an error."""
    ask = [
        "fewest",
        "gpt2",
        "--cluster",
        "dgx-a100-80gb",
        "--max-gpus",
        "4",
        "--tokens",
        "1e9",
        "--tp",
        "1",
        "--pp",
        "1",
    ]
    done = planner(*ask, "--batch-tokens", "16384", "--dp-replicate", "2,4")
    assert done.returncode == 0, done.stderr
    assert "the fewest GPUs on which a layout fits: 2" in done.stdout
