"""The shipped profiles: each loads, each figure has a source, datasheet figures are what datasheets say."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import planner
from planner.base.errors import FileFormatError, InputError, UnknownNameError
from planner.base.units import GIB
from planner.hardware import (
    Accelerator,
    changed_cluster,
    framework_on,
    load_accelerator,
    load_cluster,
    load_efficiency,
    load_framework,
    load_link,
    profile_names,
)
from planner.hardware.read import profile_table
from planner.plan_file import read_plan
from planner.step.estimate import estimate
from planner.training_time.assumptions import assume

LOADERS: dict[str, Callable[[str], Any]] = {
    "accelerators": load_accelerator,
    "clusters": load_cluster,
    "efficiency": load_efficiency,
    "frameworks": load_framework,
    "links": load_link,
}
SHIPPED = [(kind, name) for kind in LOADERS for name in profile_names(kind)]

# Peak dense TFLOP/s and GB/s from the vendors' datasheets; memory in GiB, to 1%, as drivers report it.
DATASHEET = [
    ("v100-sxm-16gb", "fp16", 125, 16, 900),
    ("v100-sxm-32gb", "fp16", 125, 32, 900),
    ("a100-sxm-40gb", "bf16", 312, 40, 1555),
    ("a100-sxm-80gb", "bf16", 312, 80, 2039),
    ("a100-pcie-80gb", "bf16", 312, 80, 1935),
    ("h100-sxm", "bf16", 989.5, 80, 3350),
    ("h100-pcie", "bf16", 756.5, 80, 2000),
    ("h200", "bf16", 989.5, 140.4, 4800),
    ("b200", "bf16", 2250, 178.4, 8000),
    ("b300", "bf16", 2250, 268.6, 8000),
    ("gb200", "bf16", 2500, 185.0, 8000),
    ("gb300", "bf16", 2500, 277.5, 8000),
    ("l4", "bf16", 121, 22.5, 300),
    ("mi250x", "bf16", 191.5, 64, 1638.4),
    ("mi300x", "bf16", 1307.4, 192, 5300),
]

# Cluster, accelerator, GPUs and NICs per node, Gb/s a NIC, GB/s of NVLink a GPU and direction, framework.
CLUSTERS = [
    ("dgx-1-v100", "v100-sxm-32gb", 8, 4, 100, 150, "megatron-lm"),
    ("dgx-2-v100", "v100-sxm-32gb", 16, 8, 100, 150, "megatron-lm"),
    ("dgx-a100-40gb", "a100-sxm-40gb", 8, 8, 200, 300, "megatron-lm"),
    ("dgx-a100-80gb", "a100-sxm-80gb", 8, 8, 200, 300, "megatron-lm"),
    ("selene", "a100-sxm-80gb", 8, 8, 200, 300, "megatron-lm"),
    ("aws-p4d", "a100-sxm-40gb", 8, 4, 100, 300, "megatron-lm"),
    ("dgx-h100", "h100-sxm", 8, 8, 400, 450, "megatron-core"),
    ("aws-p5", "h100-sxm", 8, 8, 400, 450, "megatron-core"),
    ("dgx-h200", "h200", 8, 8, 400, 450, "megatron-core"),
    ("dgx-b200", "b200", 8, 8, 400, 900, "megatron-core"),
    ("dgx-b300", "b300", 8, 8, 800, 900, "megatron-core"),
    ("gb200-nvl72", "gb200", 72, 72, 400, 900, "megatron-core"),
    ("gb300-nvl72", "gb300", 72, 72, 800, 900, "megatron-core"),
]


def numbers(profile: Any) -> list[tuple[str, float]]:
    """Every float of a profile, those in its small tables with a dotted name."""
    found: list[tuple[str, float]] = []
    for field in fields(profile):
        value = getattr(profile, field.name)
        if isinstance(value, float):
            found.append((field.name, value))
        elif isinstance(value, dict) and field.name not in ("sources", "fitted"):
            found += [(f"{field.name}.{key}", v) for key, v in value.items()]
    return found


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_shipped_profile_loads_under_its_file_name(kind: str, name: str) -> None:
    """Efficiencies have the name of a generation, whose cards may have a file each: ada-l4 is ada's."""
    assert name in (own := LOADERS[kind](name).name, f"{own}-{name.removeprefix(own + '-')}" * (kind == "efficiency"))


def test_a_card_s_own_products_leave_it_in_its_generation() -> None:
    ada = load_efficiency("ada")
    for card in ("l4", "l40s"):
        own = load_accelerator(card).efficiency
        assert own.name == ada.name == "ada"
        assert own.matrix_fraction["bf16"] < ada.matrix_fraction["bf16"]


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_figure_is_sane_and_has_a_source(kind: str, name: str) -> None:
    profile = LOADERS[kind](name)
    figures = numbers(profile)
    assert all(math.isfinite(value) and value >= 0 for _, value in figures)
    # A source is filed under the TOML field, whose unit differs: compare how many there are.
    settings = ("blocking_launches",)
    counts = [f.name for f in fields(profile) if isinstance(getattr(profile, f.name), int) and f.name not in settings]
    assert len(profile.sources) == len(figures) + len(counts)
    assert all(len(text) > 10 for text in profile.sources.values())


@pytest.mark.parametrize(("name", "precision", "tflops", "gib", "gbyte_per_s"), DATASHEET)
def test_datasheet_figures(name: str, precision: str, tflops: float, gib: float, gbyte_per_s: float) -> None:
    accelerator = load_accelerator(name)
    assert accelerator.peak_flops[precision] == pytest.approx(tflops * 1e12)
    assert 0.91 * gib * GIB < accelerator.memory_bytes <= gib * GIB  # what a process can have of it
    assert accelerator.memory_bandwidth_bytes_per_s == pytest.approx(gbyte_per_s * 1e9)


@pytest.mark.parametrize("name", profile_names("accelerators"))
def test_peaks_are_dense_and_ordered(name: str) -> None:
    peak = load_accelerator(name).peak_flops
    if "bf16" in peak:
        assert peak["fp16"] == peak["bf16"]
    if "fp8" in peak:
        # A sparsity figure would make it 4. RTX 5090 sums products of blocks in fp32 at the whole rate, others at half.
        assert peak["fp8"] == pytest.approx((4 if name == "rtx-5090" else 2) * peak["bf16"], rel=0.01)
    if "nvfp4" in peak:  # 2 on Blackwell, 3 on Blackwell Ultra
        assert peak["nvfp4"] / peak["fp8"] == pytest.approx({"b300": 3, "gb300": 3}.get(name, 2), rel=0.01)
    assert all(peak["fp32"] <= value for value in peak.values())


@pytest.mark.parametrize(("name", "accelerator", "gpus", "nics", "gbit", "gbyte", "framework"), CLUSTERS)
def test_cluster_figures(
    name: str, accelerator: str, gpus: int, nics: int, gbit: float, gbyte: float, framework: str
) -> None:
    cluster = load_cluster(name)
    assert (cluster.accelerator.name, cluster.framework) == (accelerator, framework)
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (gpus, nics)
    assert cluster.network.bandwidth_bytes_per_s == pytest.approx(gbit * 1e9 / 8)
    assert cluster.node_link.bandwidth_bytes_per_s == pytest.approx(gbyte * 1e9)


@pytest.mark.parametrize("name", profile_names("clusters"))
def test_cluster_references_hold(name: str) -> None:
    cluster = load_cluster(name)
    assert load_framework(cluster.framework).name in profile_names("frameworks")
    assert {cluster.node_link.name, cluster.network.name, cluster.host_link.name} <= set(profile_names("links"))
    assert cluster.max_gpus is None or cluster.max_gpus % cluster.gpus_per_node == 0


def test_selene_is_560_nodes() -> None:
    assert load_cluster("selene").max_gpus == 560 * 8


def test_infiniband_and_ethernet_of_one_rate_carry_the_same_bits() -> None:
    infiniband, ethernet = load_link("infiniband-hdr"), load_link("ethernet-200g")
    assert infiniband.bandwidth_bytes_per_s == ethernet.bandwidth_bytes_per_s


def test_ethernet_without_rdma_is_slower() -> None:
    tcp, rdma = load_link("ethernet-100g"), load_link("ethernet-100g-rdma")
    assert tcp.latency_s > rdma.latency_s
    assert tcp.fraction < rdma.fraction


def test_network_is_replaced_and_nothing_else() -> None:
    before = load_cluster("dgx-h100")
    after = load_cluster("dgx-h100", network="ethernet-100g")
    assert after.network == load_link("ethernet-100g")
    assert (after.accelerator, after.node_link) == (before.accelerator, before.node_link)
    assert after.name == "dgx-h100 over ethernet-100g"


@pytest.mark.parametrize(
    ("word", "name"),
    [("100GbE", "ethernet-100g"), ("25 gbe", "ethernet-25g"), ("HDR", "infiniband-hdr"), ("ib-ndr", "infiniband-ndr")],
)
def test_a_network_is_known_by_what_people_call_it(word: str, name: str) -> None:
    assert load_cluster("dgx-h100", network=word) == load_cluster("dgx-h100", network=name)
    with pytest.raises(UnknownNameError, match="ethernet-100g"):
        load_cluster("dgx-h100", network="70GbE")


@pytest.mark.parametrize(
    ("load", "misspelt", "nearest"),
    [
        (load_cluster, "dgx-a100-80g", "dgx-a100-80gb"),
        (load_accelerator, "h100-smx", "h100-sxm"),
        (load_link, "nvlink44", "nvlink-4"),
        (load_framework, "megatrom", "megatron-lm"),
        (load_efficiency, "hoper", "hopper"),
    ],
)
def test_unknown_name_comes_with_the_nearest(load: Callable[[str], Any], misspelt: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=nearest):
        load(misspelt)


def test_unknown_network() -> None:
    with pytest.raises(UnknownNameError, match="ethernet-100g"):
        load_cluster("dgx-h100", network="ethernet-100gb")


def test_profiles_are_frozen() -> None:
    with pytest.raises(AttributeError):
        load_accelerator("h100-sxm").power_w = 1.0  # type: ignore[misc]
    assert isinstance(load_accelerator("h100-sxm"), Accelerator)


def test_a_profile_of_ones_own_needs_no_sources(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nbase = "dgx-h100"\ngpus_per_node = 4\nnics_per_node = 2\n')
    mine = load_cluster(str(path))
    assert (mine.gpus_per_node, mine.nics_per_node) == (4, 2)
    assert mine.sources["gpus_per_node"] == "a file of one's own, which names no source"
    path.write_text('name = "mine"\nbase = "dgx-h100"\ngpus_per_node = 0\n')
    with pytest.raises(FileFormatError, match="gpus_per_node"):
        load_cluster(str(path))


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_figure_of_a_shipped_profile_names_its_source(kind: str, name: str) -> None:
    assert not any("names no source" in text for text in LOADERS[kind](name).sources.values())


def test_a_file_on_a_base_without_a_name_has_its_own(tmp_path):
    """Under its base's name it would pass for the shipped cluster in a plan."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\ngpus_per_node = 4\nnics_per_node = 4\n')
    cluster = load_cluster(str(path))
    assert (cluster.name, cluster.gpus_per_node, cluster.framework) == ("mine", 4, "megatron-core")


@pytest.mark.parametrize(
    ("name", "profile"),
    [("DeepSpeed", "transformers-deepspeed"), ("Lit-GPT", "litgpt"), ("mindspeed", "megatron-core"),
     ("LLaMA-Factory", "llama-factory"), ("Colossal-AI", "colossalai"), ("PaddlePaddle", "paddlenlp")],
)  # fmt: skip
def test_a_framework_goes_by_the_names_of_those_that_run_its_code(name, profile):
    assert load_framework(name).name == profile


def test_no_two_frameworks_go_by_one_name_and_none_inherits_another_s_names():
    names = [profile_table("frameworks", name, None)[0].get("also", []) for name in profile_names("frameworks")]
    letters = [
        re.sub("[-_ ]", "", name) for name in [*profile_names("frameworks"), *(n for also in names for n in also)]
    ]
    assert len(letters) == len(set(letters)) > len(names)


def test_a_framework_s_figure_is_taken_with_the_cluster_s_and_by_a_plan_of_it(tmp_path):
    figures = {"framework.overlap_tensor": 0.0, "accelerator.memory_gib": 100.0}
    cluster = planner.Cluster("dgx-h100", figures=figures)
    assert (
        framework_on(cluster.profile).overlap_tensor == 0.0 < load_framework(cluster.profile.framework).overlap_tensor
    )
    ask = {"gpus": 64, "batch": 64, "tp": 8, "pp": 1, "top": 1, "framework": "megatron"}
    slower, usual = (planner.recommend("llama3-8b", c, **ask) for c in (cluster, "dgx-h100"))
    assert slower[0].step_time_s > 1.01 * usual[0].step_time_s
    slower.save(tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.setup.framework.overlap_tensor == 0.0
    assert estimate(again.setup, again.layouts).step_time_s[0] == pytest.approx(slower[0].step_time_s)
    with pytest.raises(InputError, match=r"'framework.overlap_tensor' is 7.0; allowed: a value from 0 to 1"):
        changed_cluster("dgx-h100", {"framework.overlap_tensor": 7.0})
    with pytest.raises(UnknownNameError, match=r"unknown figure 'framework.zzz'; nearest: framework\."):
        changed_cluster("dgx-h100", {"framework.zzz": 1.0})


def test_figures_that_stand_beside_each_other_are_given_together():
    both = {"node_link.sum_fraction": 0.6, "node_link.sum_latency_us": 63.0}
    link = changed_cluster("dgx-h100", both).node_link
    assert (link.sum_fraction, link.sum_latency_s) == (0.6, pytest.approx(63e-6))
    assert load_link("nvlink-4-nvls").sum_fraction == 0.6
    for figure, value in both.items():
        with pytest.raises(InputError, match=rf"'{figure}' is {value}; allowed: both sum_\w+ and sum_\w+, or neither"):
            changed_cluster("dgx-h100", {figure: value})
    with pytest.raises(InputError, match=r"'node_link.sum_latency_us' is -1.0; allowed: a value from 0"):
        changed_cluster("dgx-h100", both | {"node_link.sum_latency_us": -1.0})


@pytest.mark.parametrize(("name", "gpu_kw"), [("gb200-nvl72", 1.2), ("gb300-nvl72", 1.4)])
def test_a_rack_draws_132_kw_of_its_own_and_not_a_dgx_h100s_share(name, gpu_kw):
    cluster = load_cluster(name)
    own = assume(cluster)
    assert cluster.accelerator.power_w == 1000 * gpu_kw
    assert own["site_factor"] * own["power_w"] * cluster.gpus_per_node == pytest.approx(132e3, rel=0.005)
    assert own.figures["site_factor"].source.startswith("132 kW per rack")
    assert assume(cluster, {"site_factor": 2.0}).figures["site_factor"].source == "given"
    assert assume(load_cluster("dgx-h100"))["site_factor"] == 1.8
