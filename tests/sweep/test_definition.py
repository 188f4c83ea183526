"""A sweep's file: what it means, and every fault one line that names the field, its value and what is allowed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planner.base.errors import FileFormatError
from planner.hardware import load_cluster
from planner.sweeps.sweep import load_sweep

BASE = 'models = ["gpt2"]\nclusters = ["dgx-a100-80gb"]\ngpus = [8]\nglobal_batches = [8]\n'
BAD = [
    ("gpus = [8]", "tokens = 'many'\ngpus = [8]", "field tokens is 'many'; allowed: a number of tokens, such as 15e12"),
    ('models = ["gpt2"]', 'models = ["gpt-two"]', "unknown model 'gpt-two'"),
    ('models = ["gpt2"]', 'modles = ["gpt2"]', "unknown field modles; did you mean models?"),
    ('models = ["gpt2"]', "", "field models is missing"),
    ('models = ["gpt2"]', "models = []", "field models is []"),
    ('models = ["gpt2"]', 'models = ["gpt2", "gpt2"]', "a list of different names"),
    ('models = ["gpt2"]', 'models = ["nothing.toml"]', "nothing.toml"),
    ('["dgx-a100-80gb"]', '["dgx-a100"]', "unknown cluster 'dgx-a100'"),
    ("gpus = [8]", "gpus = [0]", "field gpus is [0]; allowed: a list of different whole numbers from 1"),
    ("gpus = [8]", "gpus = [8, 8]", "field gpus is [8, 8]"),
    ("gpus = [8]", "gpus = [8.5]", "field gpus is [8.5]"),
    ("gpus = [8]", "gpus = { from = 8, to = 64 }", "{ from = 8, to = 64, step = 8 }"),
    ("gpus = [8]", "gpus = { from = 64, to = 8, factor = 2 }", "from at most to"),
    ("gpus = [8]", "gpus = { from = 8, to = 64, factor = 1 }", "factor above 1"),
    ("gpus = [8]", "gpus = { from = 8, to = 100, factor = 2 }", "a to that the range comes to, such as 64 or 128"),
    ("gpus = [8]", "gpus = { from = 8, to = 30, step = 8 }", "a to that the range comes to, such as 24 or 32"),
    ("gpus = [8]", "gpus = { from = 1, to = 1e6, step = 1 }", "at most 10000 values"),
    ("", 'networks = ["infinibad-hdr"]', "infiniband-hdr"),
    ("", 'frameworks = ["megatrom"]', "megatron-lm"),
    ("", 'objectives = ["beauty"]', "field objectives.0 is 'beauty'; allowed: 'time'"),
    ("", 'precisions = ["fp7"]', "fp8"),
    ("", "tokens = -1", "field tokens is -1"),
    ("", "seq_lens = [1000000000]", "seq_len"),
    ("", "prices = { dgx-h100 = 2 }", "prices of the clusters that are swept; 'dgx-h100' is not"),
    ("", "[hardware]\naccelerator.memory_gb = [80]", "did you mean memory_gib?"),
    ("", "[hardware]\naccelerator.memory_gib = [1e9]", "accelerator.memory_gib is 1e+09; allowed: a value from"),
    ("", "[hardware]\naccelerator.memory_gib = [80, 'big']", "numbers, or names, or booleans, not a mixture"),
    ("", "[hardware]\naccelerator.memory_gib = { times = [1e6] }", "accelerator.memory_gib is 7.925e+07; allowed: a"),
    ("", "[hardware]\naccelerator.memory_gib = { times = [0] }", "multiples above 0"),
    ("", "[hardware]\naccelerator.price_usd_per_hour = { times = [2] }", "nothing to multiply"),
    ("", "[hardware]\ngpus_per_node = [2.5]", "hardware.gpus_per_node is 2.5; allowed: a whole number"),
    ("", '[hardware]\nframework = ["fsdp"]', "frameworks = [...]"),
    ("", '[hardware]\naccelerator = ["l4"]\n"accelerator.memory_gib" = [80]', "exclude each other"),
    ("", '[hardware]\n"accelerator.memory_gib" = [80]\naccelerator.memory_gib = [40]', "stands there twice"),
    ("", '[[designs]]\nname = "a"\n[[designs]]\nname = "a"', "designs with different names"),
    ("", '[[designs]]\nname = "a"\nhardware = { accelerator.memory_gib = [1, 2] }', "one value a field"),
    ("", '[[designs]]\nname = "a"\nhardware = { gpus_per_node = 0 }', "designs.0.hardware.gpus_per_node is 0"),
    ("", "[search]\ntp = [0]", "field search.tp is [0]"),
    ("", '[search]\nschedule = ["1f2b"]', "1f1b"),
    ("", "[search]\nspeed = 3", "unknown field search.speed"),
    ("", "[assumptions]\nprice_usd_per_hour = 2", "unknown field assumptions.price_usd_per_hour; allowed: mtbf_hours"),
    ("", "[assumptions]\nsite_factor = 0.5", "--site-factor is 0.5; allowed: 1 to 10"),
    ("", "gpus = ", "not valid TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), BAD, ids=[new or "missing" for _, new, _ in BAD])
def test_a_fault_is_one_line(tmp_path, old, new, said):
    path = tmp_path / "sweep.toml"
    path.write_text(BASE.replace(old, new) if old else f"{BASE}{new}\n")
    with pytest.raises(FileFormatError) as caught:
        load_sweep(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_too_many_cases_are_refused(tmp_path):
    path = tmp_path / "sweep.toml"
    many = "{ from = 1, to = 10000, step = 1 }"
    path.write_text(BASE.replace("[8]", many))
    with pytest.raises(FileFormatError, match="100,000,000 cases; allowed: at most 10,000,000"):
        load_sweep(path)


def test_cases_are_all_combinations_once(small):
    cases = load_sweep(small).cases
    seen = [tuple(cases.coordinates(i).values()) for i in range(len(cases))]
    assert len(seen) == len(set(seen)) == math.prod(len(axis.values) for axis in cases.axes) == 96
    assert [i for s in range(cases.num_searches) for i in cases.of_search(s)] == list(range(96))


def test_one_search_answers_all_prices_and_objectives(small):
    small.write_text(small.read_text().replace("power_w = { times = [1, 0.5] }", "price_usd_per_hour = [4, 2]"))
    sweep = load_sweep(small)
    assert (sweep.cases.per_search, sweep.cases.num_searches) == (4, 24)
    search, asks = sweep.search(0)
    assert [ask.case for ask in asks] == [0, 1, 2, 3]
    assert search.setup.cluster.accelerator.memory_bytes == 8 * 2**30
    assert [(a.names["accelerator.price_usd_per_hour"], a.objective) for a in asks] == [
        (4.0, "time"), (4.0, "memory"), (2.0, "time"), (2.0, "memory"),
    ]  # fmt: skip
    assert [a.assumptions["price_usd_per_hour"] for a in asks] == [4.0, 4.0, 2.0, 2.0]


def test_each_power_has_its_search(small):
    sweep = load_sweep(small)
    searches = [sweep.search(i) for i in range(sweep.cases.num_searches)]
    powers = [(s.setup.cluster.accelerator.power_w, a.assumptions["power_w"]) for s, asks in searches for a in asks]
    assert {200.0, 400.0} < {power for power, _ in powers}
    assert all(searched == priced for searched, priced in powers)


def test_ranges_and_multiples(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        BASE.replace("gpus = [8]", "gpus = { from = 8, to = 64, factor = 2 }")
        + "[hardware]\nnetwork.bandwidth_gbit_per_s = { times = { from = 0.5, to = 2, factor = 2 } }\n"
        + "node_link.latency_us = { from = 1, to = 2, step = 0.25 }\n"
    )
    sweep = load_sweep(path)
    axes = {axis.name: axis.values for axis in sweep.cases.axes}
    assert axes["gpus"] == (8, 16, 32, 64)
    assert axes["node_link.latency_us"] == (1.0, 1.25, 1.5, 1.75, 2.0)
    own = load_cluster("dgx-a100-80gb").network.bandwidth_bytes_per_s
    found = {sweep.search(i)[0].setup.cluster.network.bandwidth_bytes_per_s for i in range(sweep.cases.num_searches)}
    assert found == {0.5 * own, own, 2.0 * own}


def test_designs_change_fields_together(tmp_path):
    path = tmp_path / "sweep.toml"
    small, large = "accelerator.memory_gib = 80", "accelerator.memory_gib = 141, gpus_per_node = 72, nics_per_node = 72"
    tables = [f'[[designs]]\nname = "{name}"\nhardware = {{ {x} }}\n' for name, x in (("now", small), ("next", large))]
    path.write_text(BASE + "".join(tables))
    sweep = load_sweep(path)
    now, then = (sweep.search(i)[0].setup.cluster for i in range(2))
    assert (now.accelerator.memory_bytes, now.gpus_per_node, now.nics_per_node) == (80 * 2**30, 8, 8)
    assert (then.accelerator.memory_bytes, then.gpus_per_node, then.nics_per_node) == (141 * 2**30, 72, 72)
    assert [sweep.search(i)[1][0].names["design"] for i in range(2)] == ["now", "next"]


def test_framework_fields_and_networks(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'{BASE}networks = ["own", "ethernet-25g"]\nframeworks = ["own", "fsdp"]\n'
        "[hardware]\nframework.overlap_tensor = [0.0, 0.5]\n"
    )
    sweep = load_sweep(path)
    found = [sweep.search(i) for i in range(sweep.cases.num_searches)]
    assert {search.setup.framework.overlap_tensor for search, _ in found} == {0.0, 0.5}
    assert {ask.names["network"] for _, asks in found for ask in asks} == {"infiniband-hdr", "ethernet-25g"}
    assert {ask.names["framework"] for _, asks in found for ask in asks} == {"megatron-lm", "fsdp"}


def test_profiles_on_paths_are_read_from_the_sweeps_folder(tmp_path, monkeypatch):
    shipped = Path(__file__).parents[2] / "hardware_profiles" / "links" / "ethernet-25g.toml"
    (tmp_path / "mine.toml").write_text(shipped.read_text().replace('"ethernet-25g"', '"mine"'))
    (tmp_path / "sweep.toml").write_text(f'{BASE}networks = ["mine.toml"]\n')
    monkeypatch.chdir("/")
    assert load_sweep(tmp_path / "sweep.toml").search(0)[0].setup.cluster.network.name == "mine"


def test_tokens_may_be_written_as_people_do(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('tokens = "1T"\n' + BASE)
    assert load_sweep(path).file.tokens == 1e12


def test_a_choice_whose_least_is_zero_takes_zero(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(BASE + "[search]\nrecompute_layers = [0, 2]\noffload_layers = 0\n")
    assert load_sweep(path).file.search.recompute_layers == (0, 2)
    path.write_text(BASE + "[search]\nrecompute_layers = [-1]\n")
    with pytest.raises(FileFormatError, match=r"recompute_layers is \[-1\]; allowed: .* whole numbers from 0"):
        load_sweep(path)
