"""A user's own files: what is wrong with one is said in one line that names the file and the field."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import planner
from planner.base.errors import FileFormatError, PlannerError, UnknownNameError
from planner.hardware import (
    Framework,
    cluster_figures,
    load_accelerator,
    load_cluster,
    load_efficiency,
    load_framework,
    load_link,
)
from planner.hardware.declared import declared

ACCELERATOR = """
name = "mine"
efficiency = "ampere"
num_compute_units = { value = 108, source = "sheet" }
memory_gib = { value = 80, source = "sheet" }
memory_bandwidth_gbyte_per_s = { value = 2039, source = "sheet" }
power_w = { value = 400, source = "sheet" }

[peak_tflops]
fp32 = { value = 19.5, source = "sheet" }
bf16 = { value = 312, source = "sheet" }

[sources]
sheet = "the vendor's datasheet"
"""

LINK = """
name = "mine"
kind = "infiniband"
bandwidth_gbit_per_s = { value = 200, source = "sheet" }
latency_us = { value = 8, source = "sheet" }
fraction = { value = 0.85, source = "sheet" }
send_fraction = { value = 0.9, source = "sheet" }

[sources]
sheet = "the vendor's datasheet"
"""

CLUSTER = """
name = "mine"
accelerator = "a100-sxm-80gb"
node_link = "nvlink-3"
network = "infiniband-hdr"
host_link = "pcie-4"
framework = "megatron-lm"
gpus_per_node = { value = 8, source = "sheet" }
nics_per_node = { value = 8, source = "sheet" }
max_gpus = { value = 64, source = "sheet" }
storage_bandwidth_gbyte_per_s = { value = 5, source = "sheet" }

[sources]
sheet = "the vendor's datasheet"
"""

# What is replaced in the file, by what, and what the message names.
BAD_ACCELERATORS = [
    ('memory_gib = { value = 80, source = "sheet" }', "", "memory_gib is missing"),
    ("[peak_tflops]", "", "peak_tflops"),
    ("value = 80", "value = -80", "memory_gib .* from 0.1 to 10000"),
    ("value = 80", "value = 0", "memory_gib .* from 0.1 to 10000"),
    ("value = 80", "value = nan", "memory_gib.value is nan; .*finite"),
    ("value = 80", "value = inf", "memory_gib.value is inf; .*finite"),
    ("value = 80", "value = 1" + "0" * 400, "memory_gib.value .*finite"),
    ("value = 80", "value = true", "memory_gib.value is True; allowed: a number"),
    ("value = 80", 'value = "80"', "memory_gib.value is '80'; allowed: a number"),
    ("value = 80", "value = [80]", "memory_gib.value is .80.; allowed: a number"),
    ('{ value = 80, source = "sheet" }', '"80"', r"memory_gib is '80'; allowed: a number, or \{ value = a number"),
    ("value = 80, ", "", "memory_gib.value is missing"),
    ('value = 80, source = "sheet"', "value = 80", "memory_gib.source is missing"),
    ("value = 80, source", "value = 80, sorce", "memory_gib.sorce; did you mean source"),
    ("value = 80", "value = 85899345920", "memory_gib .* from 0.1 to 10000"),  # bytes
    ("value = 2039", "value = 2039e9", "memory_bandwidth_gbyte_per_s .* from 1 to 100000"),  # bytes/s
    ("value = 312", "value = 312e12", "peak_tflops.bf16 .* from 0.0001 to 100000"),  # FLOP/s
    ("value = 108", "value = 108.5", "num_compute_units .* a whole number"),
    ("memory_gib", "memory_gb", "memory_gb; did you mean memory_gib"),
    ("memory_gib", "memory_bytes", "memory_bytes; did you mean .*memory_gib"),
    ("memory_bandwidth_gbyte_per_s", "memory_bandwidth_gbit_per_s", "mean memory_bandwidth_gbyte_per_s"),
    ("power_w", "power_kw", "power_kw; did you mean power_w"),
    ("[peak_tflops]", "[peak_flops]", "peak_flops; did you mean peak_tflops"),
    ("bf16 =", "bf15 =", "peak_tflops.bf15; did you mean bf16"),
    ("bf16 =", "fp8 =", "peak_tflops.fp8 has no matrix_fraction in efficiency 'ampere'"),
    ('value = 80, source = "sheet"', 'value = 80, source = "shet"', "source of memory_gib .*'shet' does not"),
    ("[sources]", '[sources]\nother = "a page"', "sources.other is not used"),
    ("the vendor's datasheet", "", "sources.sheet"),
    ("the vendor's datasheet", "     ", "sources.sheet .* where the figure comes from"),
    ('"mine"', '""', "name"),
    ('"mine"', "7", "name is 7"),
    ('"ampere"', '"missing.toml"', "missing.toml: can't be read"),
    ("power_w =", "power_w", "not valid TOML"),
    ('power_w = { value = 400, source = "sheet" }', "power_w = { value = 400", "not valid TOML"),
]

BAD_LINKS = [
    ("bandwidth_gbit_per_s", "bandwidth_gb_per_s", "mean bandwidth_gbit_per_s or bandwidth_gbyte_per_s"),
    ('bandwidth_gbit_per_s = { value = 200, source = "sheet" }', "", "exactly one of bandwidth_gbyte"),
    ("latency_us", 'bandwidth_gbyte_per_s = { value = 25, source = "sheet" }\nlatency_us', "exactly one of"),
    ("value = 200", "value = 25e9", "bandwidth_gbit_per_s .* from 0.01 to 100000"),
    ("latency_us", "latency_s", "latency_s; did you mean latency_us"),
    ("value = 8,", "value = -8,", "latency_us .* from 0 to"),
    ("value = 0.85", "value = 85", "fraction .* from 0.001 to 1"),
    ("value = 0.85", "value = 0", "fraction .* from 0.001 to 1"),
    ('"infiniband"', '"token-ring"', "kind is 'token-ring'; .*nvlink"),
]

BAD_CLUSTERS = [
    ("gpus_per_node = { value = 8", "gpus_per_node = { value = 0", "gpus_per_node .*from 1 to"),
    ("gpus_per_node = { value = 8", "gpus_per_node = { value = 8.5", "gpus_per_node .*a whole number"),
    ("gpus_per_node = { value = 8", "gpus_per_node = { value = true", "gpus_per_node.value is True"),
    ("gpus_per_node", "gpu_per_node", "gpu_per_node; did you mean gpus_per_node"),
    ("nics_per_node = { value = 8", "nics_per_node = { value = -1", "nics_per_node .*from 1 to"),
    ("max_gpus = { value = 64", "max_gpus = { value = 0", "max_gpus .*from 1 to"),
    ('"nvlink-3"', "3", "node_link is 3"),
    ('"nvlink-3"', '"./none.toml"', "none.toml: can't be read"),
    ("storage_bandwidth_gbyte_per_s", "storage_bandwidth", "did you mean storage_bandwidth_gbyte_per_s"),
]

LOADERS: dict[str, Callable[[str], Any]] = {
    ACCELERATOR: load_accelerator,
    LINK: load_link,
    CLUSTER: load_cluster,
}


def check(tmp_path: Path, text: str, loader: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message) as caught:
        LOADERS[loader](str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize(("old", "new", "message"), BAD_ACCELERATORS)
def test_bad_accelerator(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ACCELERATOR
    check(tmp_path, ACCELERATOR.replace(old, new, 1), ACCELERATOR, message)


@pytest.mark.parametrize(("old", "new", "message"), BAD_LINKS)
def test_bad_link(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in LINK
    check(tmp_path, LINK.replace(old, new, 1), LINK, message)


@pytest.mark.parametrize(("old", "new", "message"), BAD_CLUSTERS)
def test_bad_cluster(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CLUSTER
    check(tmp_path, CLUSTER.replace(old, new, 1), CLUSTER, message)


def test_empty_table_of_peaks(tmp_path: Path) -> None:
    start, end = ACCELERATOR.index("fp32"), ACCELERATOR.index("[sources]")
    text = ACCELERATOR[:start] + ACCELERATOR[end:]
    check(tmp_path, text, ACCELERATOR, "peak_tflops .* at least one of fp32")


@pytest.mark.parametrize("name", ["none.toml", "folder/", "folder/none", "folder", "nul\0.toml"])
def test_not_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileFormatError, match="can't be read"):
        load_accelerator(str(tmp_path / name))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        load_accelerator(str(path))


@pytest.mark.parametrize("field", ["accelerator", "node_link", "network", "host_link", "framework"])
def test_unknown_reference(tmp_path: Path, field: str) -> None:
    start = CLUSTER.index(f"{field} = ")
    end = CLUSTER.index("\n", start)
    path = tmp_path / "mine.toml"
    path.write_text(f'{CLUSTER[:start]}{field} = "nothing-like-it"{CLUSTER[end:]}')
    with pytest.raises(UnknownNameError, match="nothing-like-it"):
        load_cluster(str(path))


def test_a_cluster_refers_to_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    (here / "gpu.toml").write_text(ACCELERATOR)
    (here / "net.toml").write_text(LINK)
    framework = Path(__file__).parents[2] / "hardware_profiles" / "frameworks" / "fsdp.toml"
    (here / "framework.toml").write_text(framework.read_text())
    text = CLUSTER.replace('"a100-sxm-80gb"', '"gpu.toml"').replace('"infiniband-hdr"', '"./net.toml"')
    (here / "cluster.toml").write_text(text.replace('"megatron-lm"', '"framework.toml"'))
    monkeypatch.chdir(away)
    cluster = load_cluster("../here/cluster.toml")
    assert (cluster.accelerator.name, cluster.network.name) == ("mine", "mine")
    assert cluster.node_link == load_link("nvlink-3")
    assert load_framework(cluster.framework).name == "fsdp"


def test_a_profile_over_a_base_says_only_what_differs(tmp_path: Path) -> None:
    """Figure by figure, in tables too; sources of the base that nothing uses any more go."""
    (tmp_path / "more.toml").write_text("""
name = "h100-96gb"
base = "h100-sxm"
memory_gib = { value = 96, source = "theirs" }
peak_tflops = { bf16 = { value = 900, source = "theirs" } }
[sources]
theirs = "a page of theirs"
""")
    (tmp_path / "twice.toml").write_text('name = "twice"\nbase = "more.toml"\n')
    base, more = load_accelerator("h100-sxm"), load_accelerator(str(tmp_path / "more.toml"))
    assert (more.name, more.memory_bytes / 2**30, more.peak_flops["bf16"]) == ("h100-96gb", 96, 9e14)
    assert (more.peak_flops["fp8"], more.memory_bandwidth_bytes_per_s) == (1.979e15, base.memory_bandwidth_bytes_per_s)
    assert more.sources["memory_gib"] == "a page of theirs"
    assert more.sources["power_w"] == base.sources["power_w"]
    assert load_accelerator(str(tmp_path / "twice.toml")).memory_bytes == more.memory_bytes
    bridge, nemo, core = (load_framework(name) for name in ("megatron-bridge", "nemo", "megatron-core"))
    assert (bridge.node_dispatch, nemo.node_dispatch, core.node_dispatch) == (True, False, False)
    assert bridge.overlap_tensor == nemo.overlap_tensor > core.overlap_tensor
    assert bridge.overlap_param_gather == core.overlap_param_gather


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('base = "h100"', "h100-sxm"),
        ("base = 1", "field base is 1"),
        ('base = "mine.toml"', "field base stands on itself"),
        ('base = "h100-sxm"\n[sources]\ndatasheet = "other"', "sources.datasheet is another in its base"),
        ('base = "h100-sxm"\n[sources]\nmine = "unused"', "sources.mine is not used"),
        ('base = "h100-sxm"\nmemory_gib = true', "memory_gib"),
        ('base = "h100-sxm"\nsources = "a page"', "field sources is 'a page'; allowed: a table"),
        ('base = "h100-sxm"\nmemory_gib = { value = 96, source = ["datasheet"] }', "memory_gib.source"),
    ],
)
def test_a_wrong_base_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(f'name = "mine"\n{text}\n')
    with pytest.raises((FileFormatError, UnknownNameError), match=said):
        load_accelerator(str(tmp_path / "mine.toml"))


def test_pydantic_is_not_imported_until_a_profile_is_read() -> None:
    code = "import sys, planner.hardware as h; h.profile_names('clusters'); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ODD = ['""', '"sheet"', "[]", "{}", "[[1]]", "1" + "0" * 400, "1979-05-27", "nan", "-inf", "{ value = 1 }"]
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.booleans().map(lambda b: str(b).lower()),
    st.sampled_from(ODD),
    st.text(max_size=8).map(lambda text: '"' + text + '"'),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_file_never_raises_anything_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([ACCELERATOR, LINK, CLUSTER]))
    load, lines = LOADERS[text], text.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(lines) - 1))
        key = lines[i].split("=")[0]
        kind = data.draw(st.sampled_from(["drop", "value", "figure", "cut", "twice", "noise"]))
        if kind == "drop":
            lines[i] = ""
        elif kind == "value":
            lines[i] = f"{key}= {data.draw(VALUES)}"
        elif kind == "figure":
            lines[i] = f'{key}= {{ value = {data.draw(VALUES)}, source = "sheet" }}'
        elif kind == "cut":
            lines[i] = lines[i][: data.draw(st.integers(0, len(lines[i])))]
        elif kind == "twice":
            lines.insert(i, lines[i])
        else:
            lines[i] += data.draw(st.text(max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        with suppress(PlannerError):
            load(str(path))


def test_a_figure_that_a_profile_leaves_out_has_its_declared_default_and_says_so(tmp_path):
    needed = [key for name, (_, d) in declared(Framework).items() if d.needed for key in d.names(name)]
    lines = [f'{key} = {{ value = 1, source = "mine" }}' for key in needed]
    path = tmp_path / "bare.toml"
    path.write_text("\n".join(['name = "bare"', *lines, "[sources]", 'mine = "said for a test"']))
    bare = load_framework(str(path))
    assert bare.host_step_s == pytest.approx(1e-6)
    assert bare.sources["host_step_us"] == "said for a test"
    assert bare.gate_tensors == 4.0
    assert bare.sources["gate_tensors"] == "default: all stay without a fused kernel"
    assert bare.kept_expert_outputs is True
    assert bare.bf16_gradient_bytes == bare.gradient_bytes == 1.0
    assert bare.sources["bf16_gradient_bytes"] == "default: as gradient_bytes"
    assert len(bare.sources) == len(declared(Framework))


def test_every_declared_figure_can_be_stated_and_is_kept_to_its_range(tmp_path):
    for name, (_, d) in declared(Framework).items():
        for key in d.names(name):
            path = tmp_path / "one.toml"
            over = f'{key} = {{ value = {d.most * 2 + 1}, source = "mine" }}\n[sources]\nmine = "said for a test"'
            path.write_text(f'name = "one"\nbase = "megatron-core"\n{over}\n')
            with pytest.raises(FileFormatError, match=f"{key} .* from {d.least:g} to {d.most:g}".replace("+", ".")):
                load_framework(str(path))


def test_an_architecture_says_which_kernels_it_runs_whatever_its_name(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "ampere"\n')
    (tmp_path / "gpu.toml").write_text('name = "gpu"\nbase = "a100-sxm-80gb"\nefficiency = "./mine.toml"\n')
    (tmp_path / "node.toml").write_text('name = "node"\nbase = "dgx-a100-80gb"\naccelerator = "./gpu.toml"\n')
    assert planner.estimate("gpt2", tmp_path / "node.toml", batch=8, attention="flash2").fits
    with pytest.raises(planner.InputError, match="attention is flash3; gpu has: unfused, fused, flash1, flash2"):
        planner.estimate("gpt2", tmp_path / "node.toml", batch=8, attention="flash3")
    shipped = Path(__file__).parents[2] / "hardware_profiles" / "efficiency" / "hopper.toml"
    unknown = "".join(line for line in shipped.read_text().splitlines(True) if "cudnn" not in line)
    (tmp_path / "mine.toml").write_text(unknown)
    with pytest.raises(planner.InputError, match="attention is flash3; gpu has: unfused, fused, flash1, flash2"):
        planner.estimate("gpt2", tmp_path / "node.toml", batch=8, attention="flash3")
    (tmp_path / "mine.toml").write_text('attention_kernels = ["flash3"]\n' + unknown)
    with pytest.raises(planner.InputError, match="attention_kernels are flash3; flash_forward has none"):
        planner.estimate("gpt2", tmp_path / "node.toml", batch=8)
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "ampere"\nattention_kernels = ["flash9"]\n')
    with pytest.raises(FileFormatError, match="attention_kernels"):
        load_cluster(str(tmp_path / "node.toml"))


@pytest.mark.parametrize("table", ["flash_forward", "flash_backward"])
def test_an_attention_kernel_has_a_rate_both_ways_or_none(tmp_path, table):
    shipped = Path(__file__).parents[2] / "hardware_profiles" / "efficiency" / "hopper.toml"
    before, after = shipped.read_text().split(f"[{table}]\n")
    rates, rest = after.split("\n\n", 1)
    path = tmp_path / "mine.toml"
    path.write_text(f"{before}[{table}]\n{rates.rsplit('flash', 1)[0]}\n{rest}")
    with pytest.raises(
        FileFormatError, match=r"the same entries in flash_backward and flash_forward; flash3 stands in"
    ):
        load_efficiency(str(path))


def test_what_a_framework_is_built_on_is_its_base_s_unless_it_says_so(tmp_path):
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text('name = "mine"\nbase = "nemo"\n')
    assert load_framework(str(mine)).bases == ("nemo", "megatron-core")
    mine.write_text('name = "mine"\nbase = "nemo"\nbases = ["fsdp"]\n')
    assert load_framework(str(mine)).bases == ("fsdp",)
    mine.write_text('name = "mine"\nbase = "nemo"\nbases = "fsdp"\n')
    other.write_text('name = "other"\nbase = "./mine.toml"\n')
    for path in (mine, other):
        with pytest.raises(FileFormatError, match="bases"):
            load_framework(str(path))


def test_a_default_for_each_gpu_is_a_figure_like_those_that_a_profile_states():
    """0.15 GB/s of storage for each GPU, as BLOOM's checkpoints were written, where a profile says nothing."""
    for name, gpus in (("dgx-h100", 8), ("dgx-2-v100", 16), ("gb200-nvl72", 72)):
        cluster = load_cluster(name)
        assert cluster.gpus_per_node == gpus
        assert cluster.storage_bandwidth_bytes_per_s == pytest.approx(0.15e9 * gpus)
        assert cluster_figures(name)["storage_bandwidth_gbyte_per_s"] == pytest.approx(0.15 * gpus)
        assert "BLOOM" in cluster.sources["storage_bandwidth_gbyte_per_s"]
    assert cluster_figures("workstation-cpu")["storage_bandwidth_gbyte_per_s"] == 0.5  # its profile's own


def test_another_latency_of_a_link_is_that_of_its_rings_steps_too():
    own = load_link("infiniband-hdr")
    later = load_link("infiniband-hdr", changes={"latency_us": 10 * own.latency_s * 1e6})
    assert later.ring_step_s == pytest.approx(10 * own.ring_step_s)
    given = load_link("infiniband-hdr", changes={"latency_us": 10 * own.latency_s * 1e6, "ring_step_us": 7.0})
    assert given.ring_step_s == pytest.approx(7e-6)
