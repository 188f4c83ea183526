"""A probe's file as profiles: figures found again, what is refused; the script itself on one and two processes."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from planner.base.errors import FileFormatError, InputError
from planner.calibration.probe import (
    group_rates,
    grouped_share,
    hidden_share,
    probe_profiles,
    probed_figures,
    slow_ranks,
)  # fmt: skip
from planner.calibration.probe_file import probe_script, read_probe
from planner.cli.calibrate import _probe_view
from planner.costs.kernels.attention import FLASH_BLOCK
from planner.costs.kernels.device import Device, matmul_s
from planner.hardware import load_cluster, load_framework
from planner.layouts import Precision
from planner.report.plain_table import html_of
from planner.search import default_attention
from tests.commands import planner
from tests.hang import HANG_S

SLOWER = 1.25


def made() -> dict[str, Any]:
    """What a probe of a DGX H100 would say whose kernels and links were all slower than the profile's by a factor."""
    cluster = load_cluster("dgx-h100")
    e, peak = cluster.accelerator.efficiency, cluster.accelerator.peak_flops["bf16"]
    device = Device.of(cluster.accelerator, np.array([int(Precision.BF16)]))
    products, attention, collectives = [], [], []
    for size in (1024, 4096, 8192):
        seconds = float(matmul_s(device, size, size, size)[0]) - device.latency_s
        sizes = {"rows": size, "columns": size, "depth": size}
        products.append(
            {"precision": "bf16", "kind": "forward", **sizes, "seconds": SLOWER * seconds + device.latency_s}
        )
    for length in (2048, 16384):
        share = 0.5 * (1 + FLASH_BLOCK / length) * (1 + e.flash_half_tokens.get("flash2", 0) / length)
        seconds = 4 * 16 * length**2 * 128 * share / (peak * e.flash_forward["flash2"])
        row = {"kernel": "FLASH_ATTENTION", "kind": "forward", "precision": "bf16", "heads": 16, "width": 128}
        attention.append(row | {"length": length, "seconds": SLOWER * seconds})
    link = cluster.node_link
    for size in (2**20, 2**24, 2**28, 2**30):
        seconds = 3e-5 + 2 * 7 / 8 * size / (link.bandwidth_bytes_per_s * link.fraction)
        row = {"kind": "all_reduce", "bytes": size, "ranks": 8, "local": 8}
        collectives.append(row | {"seconds": SLOWER * seconds})
    copy_s = 2**31 / (cluster.accelerator.memory_bandwidth_bytes_per_s * e.memory_fraction)
    return {
        "format": "planner probe 1",
        "machine": {"device": "cuda", "name": "NVIDIA H100", "torch": "2.13.0"},
        "launch": [{"kind": "tiny add", "seconds": 4e-6}],
        "products": products, "attention": attention, "collectives": collectives,
        "memory": [{"kind": "copy", "bytes": 2**31, "seconds": SLOWER * copy_s}],
        "overlap": [{"kind": k, "seconds": s} for k, s in (("product", 1.0), ("all_reduce", 0.5), ("both", 1.2))],
        "ranks": [{"rank": r, "host": "node-1", "seconds": 1.0, "slower": 0.07 if r == 11 else 0.0} for r in range(16)],
    }  # fmt: skip


def written(folder: Path, **other: Any) -> Path:
    path = folder / "probe.json"
    path.write_text(json.dumps(made() | other))
    return path


def test_kernels_slower_by_a_factor_make_the_figures_smaller_by_it(tmp_path: Path) -> None:
    found = probed_figures(read_probe(written(tmp_path)), load_cluster("dgx-h100"))
    assert {f.figure.field for f in found} == {"matrix_fraction", "flash_forward", "memory_fraction", "fraction"}
    for f in found:
        assert f.value == pytest.approx(f.figure.profile / SLOWER, rel=1e-3), f.figure.label


def test_slow_ranks_and_what_hides_are_said(tmp_path: Path) -> None:
    probe = read_probe(written(tmp_path))
    assert [row.rank for row in slow_ranks(probe)] == [11]
    assert hidden_share(probe) == pytest.approx(0.6)


def test_profiles_of_a_probe_are_taken_by_other_commands(tmp_path: Path) -> None:
    done = planner(
        "calibrate", "--probe", str(written(tmp_path)), "--cluster", "dgx-h100", "--profile", str(tmp_path / "m")
    )
    assert done.returncode == 0, done.stderr
    assert "-20%" in done.stdout
    assert "rank 11 on node-1: products 7% slower" in done.stdout
    layout = ["--dp", "8", "--recompute", "full", "--global-batch", "64", "--json"]
    shipped = json.loads(planner("estimate", "llama3-8b", "--cluster", "dgx-h100", *layout).stdout)
    own = str(tmp_path / "m" / "clusters" / "dgx-h100.toml")
    probed = json.loads(planner("estimate", "llama3-8b", "--cluster", own, *layout).stdout)
    assert 1.1 < probed["step_time_s"] / shipped["step_time_s"] < SLOWER + 0.01


def test_a_figure_that_spreads_by_more_than_itself_is_not_written(tmp_path: Path) -> None:
    copies = [{"kind": "copy", "bytes": 2**31, "seconds": s} for s in (1e-3, 1.0, 2.0)]
    found = probed_figures(probe := read_probe(written(tmp_path, memory=copies)), load_cluster("dgx-h100"))
    assert [f.figure.field for f in found if f.unsteady] == ["memory_fraction"]
    text = probe_profiles(found, probe, "dgx-h100")["efficiency/hopper.toml"]
    shipped = load_cluster("dgx-h100").accelerator.efficiency.memory_fraction
    assert f"memory_fraction = {{ value = {shipped}," in text
    passes = [{"kind": k, "seconds": s, "spread": 0.5} for k, s in (("plain", 9e-4), ("forward", 3e-4))]
    steady = probed_figures(
        read_probe(written(tmp_path, host=passes)), load_cluster("dgx-h100"), load_framework("fsdp")
    )
    spreads = {f.figure.field: f.spread for f in steady if f.figure.folder == "frameworks"}
    assert spreads["host_layer_forward_s"] == pytest.approx(1.5e-4)
    assert spreads["host_layer_backward_s"] == pytest.approx(np.hypot(4.5e-4, 1.5e-4))


def test_a_question_is_answered_by_the_profile_and_by_the_probe(tmp_path: Path) -> None:
    slow = [row | {"seconds": 100 * row["seconds"]} for row in made()["collectives"]]
    options = ["calibrate", "--probe", str(written(tmp_path, collectives=slow)), "--cluster", "dgx-h100"]
    question = ["--model", "gpt3-6.7b", "--gpus", "8", "--global-batch", "64"]
    record = json.loads(planner(*options, *question, "--json").stdout)
    before, after = record["by_profile"], record["by_probe"]
    assert before["step_time_s"][0] <= after["step_time_s"][0]
    assert after["step_time_s"][1] < before["step_time_s"][1]
    assert record["files"] == []
    done = planner(*options, *question, "--profile", str(tmp_path / "m"))
    saved = 1 - after["step_time_s"][1] / before["step_time_s"][1]
    assert f"{saved:.1%} less time than the profile's choice" in " ".join(done.stdout.split())
    searched = planner(
        "recommend", "gpt3-6.7b", "--cluster", str(tmp_path / "m" / "clusters" / "dgx-h100.toml"), "--gpus", "8",
        "--global-batch", "64", "--json",
    )  # fmt: skip
    assert json.loads(searched.stdout)["best"][0]["layout"] == after["layout"]
    assert "To see what that changes: add --model MODEL --gpus GPUS" in planner(*options).stdout
    refused = planner(*options, "--gpus", "8")
    assert (refused.returncode, "--model is missing" in refused.stderr) == (2, True)


def test_a_processor_s_attention_stays_the_one_that_was_measured(tmp_path: Path) -> None:
    """PyTorch has one kernel there; a slower one than the profile's had made another look faster."""
    machine = {"device": "cpu", "name": "x86_64", "torch": "2", "threads": 1}
    row = {"kernel": "FLASH_ATTENTION", "precision": "fp32", "heads": 4, "width": 64, "length": 512, "seconds": 1e-2}
    rows = [row | {"kind": kind} for kind in ("forward", "backward")]
    probe = written(tmp_path, machine=machine, products=[], attention=rows, memory=[], collectives=[])
    options = ["--cluster", "workstation-cpu", "--profile", str(tmp_path / "m")]
    assert planner("calibrate", "--probe", str(probe), *options).returncode == 0
    assert default_attention(load_cluster(str(tmp_path / "m" / "clusters" / "workstation-cpu.toml"))).name == "FLASH2"


def test_a_probe_of_a_faster_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"allowed: up to 1; the probe ran on NVIDIA H100, --cluster selene has a100"):
        probed_figures(read_probe(written(tmp_path)), load_cluster("selene"))


@pytest.mark.parametrize(
    "other",
    [
        {"format": "planner probe 2"}, {"machine": {}}, {"products": [{"seconds": -1}]}, {"products": 3},
        {"products": [{"rows": 0, "seconds": 1}]}, {"memory": [{"bytes": "x"}]},
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError):
        read_probe(written(tmp_path, **other))


def test_a_plan_is_no_probe_and_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"model": "gpt2"}')
    with pytest.raises(FileFormatError, match=r"plan.json: is no probe's file; allowed: what probe.py writes"):
        read_probe(tmp_path / "plan.json")


def test_figures_whose_kernels_differ_much_are_named() -> None:
    def row(name: str, spread: float) -> dict[str, Any]:
        return {
            "figure": name, "profile": 0.5, "probe": 0.5, "spread": spread, "kernels": 9, "unsteady": spread > 0.5
        }  # fmt: skip

    machine = {"name": "a GPU", "torch": "2"}
    record = {
        "machine": machine,
        "figures": [row("calm", 0.05), row("wild", 0.2), row("lost", 0.7)],
        "slow_ranks": [],
        "hidden_share": None,
        "grouped_share": None,
        "groups": [],
    }
    said = [line for line in _probe_view(record, "dgx-h100") if isinstance(line, str)]
    untold = row("a call", 0.0) | {"kernels": 0}
    told = html_of(_probe_view(record | {"figures": [untold]}, "dgx-h100")[1])
    assert "with the host" in told
    assert told.count("0.5") == 1  # the profile's alone
    assert said[1:] == [
        "lost: its measurements spread by 140%, so the profile's stands",
        "Kernels differ by over 20% in wild: was the machine busy, or its clock low?",
    ]


def test_an_empty_probe_and_missing_options_are_refused(tmp_path: Path) -> None:
    empty = {name: [] for name in ("products", "attention", "memory", "collectives")}
    with pytest.raises(InputError, match="no figure"):
        probed_figures(read_probe(written(tmp_path, **empty)), load_cluster("dgx-h100"))
    path = str(written(tmp_path))
    for options, says in (
        (["--probe", path], "--cluster is missing"),
        (["--probe", path, "--cluster", "dgx-h100", "x.toml"], "stands beside --probe"),
        (["--cluster", "dgx-h100", "x.toml"], "--cluster needs --probe FILE"),
        (["--probe", path, "--all-figures"], "--all-figures needs --from RUNS.csv"),
    ):
        refused = planner("calibrate", *options)
        assert refused.returncode == 2
        assert says in refused.stderr


def test_the_script_needs_torch_and_the_standard_library_alone() -> None:
    tree = ast.parse(probe_script())
    named = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    named |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert named - set(sys.stdlib_module_names) == {"torch"}


def one_replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.mark.extra
@pytest.mark.parametrize("processes", [1, 4])
def test_the_script_measures_this_machine(tmp_path: Path, processes: int) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "probe.py"
    assert planner("probe", "--write", str(script)).returncode == 0
    # Making operands that fill caches takes longer than all that is measured.
    script.write_text(one_replaced(script.read_text(), "CACHE = 2**26", "CACHE = 2**20"))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "probe.py", "--seconds", "0.002"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "probe.json").read_text())
    assert "failed" not in found
    assert found["machine"]["memory_bytes"] > 2**27
    assert all(row["seconds"] > 0 for row in (*found["products"], *found["attention"], *found["memory"]))
    assert len(found["ranks"]) == processes
    assert bool(found["collectives"]) == (processes > 1)
    assert {row["kind"] for row in found["experts"]} == {"grouped", "one by one"}
    groups = {(row["ranks"], row["stride"]) for row in found["groups"]}
    assert groups == ({(2, 1), (2, 2)} if processes == 4 else set())
    figures = probed_figures(read_probe(tmp_path / "probe.json"), load_cluster("workstation-cpu"))
    fields = {f.figure.field for f in figures}
    assert {"matrix_fraction", "flash_forward", "memory_fraction", "kernel_latency_s"} <= fields
    assert ("fraction" in fields) == (processes > 1)


@pytest.mark.extra
def test_a_killed_probe_keeps_each_figure_that_it_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, file = tmp_path / "probe.py", tmp_path / "probe.json"
    script.write_text(one_replaced(probe_script(), "CACHE = 2**26", "CACHE = 2**20"))
    running = subprocess.Popen([sys.executable, "probe.py", "--seconds", "0.05"], cwd=tmp_path)
    try:
        until = time.monotonic() + HANG_S
        while not (file.exists() and read_probe(file).products) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        running.kill()
        running.wait()
    assert 0 < len(read_probe(file).products) < 54
    assert probed_figures(read_probe(file), load_cluster("workstation-cpu"))


@pytest.mark.extra
def test_fp8_products_are_of_rows_by_rows_with_fast_sums_forward_alone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    script = tmp_path / "probe.py"
    script.write_text(one_replaced(probe_script(), "CACHE = 2**26", "CACHE = 2**10"))
    small: dict[str, Any] = runpy.run_path(str(script))
    small["products"].__globals__.update(FP8=True, WIDTHS=(128,), ROWS=(64,))
    with mock.patch.object(torch, "_scaled_mm", wraps=torch._scaled_mm) as scaled:
        rows = [row for row in small["products"](1e-4) if row["precision"] == "fp8"]
    assert [row["kind"] for row in rows] == ["forward", "input", "weight"] * 2
    assert all(row["seconds"] > 0 for row in rows)
    assert all(b.stride(0) == 1 for (_, b), _ in scaled.call_args_list)
    sizes: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    for (a, b), how in scaled.call_args_list:
        sizes[how["use_fast_accum"]].add((*a.shape, b.shape[1]))
    assert sizes[True] == {(64, 128, 128), (64, 128, 512)}
    assert sizes[False] == {(64, 128, 128), (64, 512, 128), (128, 64, 128), (512, 64, 128)}


def test_planner_runs_the_script_in_place_or_says_that_torch_is_missing(tmp_path: Path) -> None:
    output = str(tmp_path / "node.json")
    with (
        mock.patch("subprocess.run", return_value=subprocess.CompletedProcess([], 3)) as ran,
        mock.patch("importlib.util.find_spec", return_value=object()),
    ):
        assert planner("probe", "--run", "2", "--output", output).returncode == 3
    command = ran.call_args.args[0]
    assert command[:5] == [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert Path(command[5]).read_text() == probe_script()
    assert command[6:] == ["--output", output]
    with mock.patch("importlib.util.find_spec", return_value=None):
        refused = planner("probe", "--run", "1")
    assert refused.returncode == 2
    assert f"torch is missing in {sys.executable}; allowed: a Python with torch, or" in refused.stderr
    asked = planner("probe", "--write", str(tmp_path / "both.py"), "--run", "2", "--output", str(tmp_path))
    assert (asked.returncode, asked.stdout, (tmp_path / "both.py").exists()) == (2, "", False)
    refused = planner("probe", "--output", "x.json")
    assert (refused.returncode, "--output is x.json; allowed: with --run" in refused.stderr) == (2, True)


def test_experts_and_groups_are_said(tmp_path: Path) -> None:
    experts = [
        {"kind": kind, "rows": rows, "columns": 64, "seconds": s}
        for rows, times in ((8, (1.0, 4.0)), (16, (3.0, 4.0)))
        for kind, s in zip(("grouped", "one by one"), times, strict=True)
    ]
    groups = [
        {"kind": "all_reduce", "ranks": 4, "stride": 2, "bytes": 10**k, "seconds": 10.0 ** (k - 9)} for k in (6, 9)
    ]
    probe = read_probe(written(tmp_path, experts=experts, groups=groups))
    assert grouped_share(probe) == pytest.approx(0.5)
    untimed = [row | {"seconds": 0.0} if i in (1, 2) else row for i, row in enumerate(experts)]
    other_sizes = read_probe(written(tmp_path, experts=untimed, groups=groups))
    assert grouped_share(other_sizes) is None, "what is left is of two sizes"
    written(tmp_path, experts=experts, groups=groups)
    assert group_rates(probe) == [{"ranks": 4, "stride": 2, "bytes_per_s": 1.5e9}]
    said = planner("calibrate", "--probe", str(tmp_path / "probe.json"), "--cluster", "dgx-h100").stdout
    said = " ".join(said.split())
    assert "Experts' products at once take 50% of their time one by one." in said
    assert "All-reduces of 4 ranks, each 2 after the last, in groups side by side: 1.5 GB/s from a rank" in said


def test_a_processor_s_probe_says_ranks_threads_links_and_the_framework_s_host_times(tmp_path: Path) -> None:
    machine = {"device": "cpu", "name": "x86_64", "torch": "2.13.0", "threads": 3, "local_world": 2}
    rings = {"all_reduce": 2.0, "all_gather": 1.5, "reduce_scatter": 3.0}
    links = [
        {"kind": kind, "bytes": size, "ranks": 2, "local": 2, "seconds": passes * (0.5 * size / 2e9 + 2 * 5e-5)}
        for kind, passes in rings.items()
        for size in (2**12, 2**20, 2**24)
    ]
    links += [
        {"kind": "send and back", "bytes": size, "ranks": 2, "local": 2, "seconds": 2 * (size / 1e9 + 3e-5)}
        for size in (2**12, 2**24)
    ]
    probe = read_probe(
        written(
            tmp_path, machine=machine, products=[], attention=[], collectives=links,
            memory=[{"kind": "add", "bytes": 1000, "seconds": 1e-7}, {"kind": "add", "bytes": 10**6, "seconds": 5e-5}],
            host=[{"kind": kind, "seconds": s} for kind, s in
                  (("forward", 3e-4), ("plain", 8e-4), ("tensor", 5e-3), ("sharded", 2e-3),
                   ("recomputed", 2.1e-3))],
        )
    )  # fmt: skip
    cluster = load_cluster("workstation-cpu")
    found = {f.figure.field: f.value for f in probed_figures(probe, cluster, load_framework("transformers-cpu"))}
    link, memory = cluster.node_link, cluster.accelerator.memory_bandwidth_bytes_per_s
    assert found == pytest.approx(
        {
            "num_compute_units": 3, "gpus_per_node": 2, "memory_fraction": 1.5e10 / memory, "kernel_latency_s": 1e-9,
            "fraction": 2e9 / link.bandwidth_bytes_per_s, "latency_s": 5e-5,
            "send_fraction": 1e9 / link.bandwidth_bytes_per_s,
            "host_layer_forward_s": 3e-4, "host_layer_backward_s": 5e-4, "gather_passes": 1.5, "scatter_passes": 3.0,
            "host_tensor_s": 2.1e-3, "host_sharded_s": 6e-4, "host_recompute_s": 1e-3,
        },
        rel=1e-6,
    )  # fmt: skip


def test_a_processor_s_profile_has_the_precision_memory_and_framework_of_its_probe(tmp_path: Path) -> None:
    machine = {"device": "cpu", "name": "x86_64", "torch": "2", "threads": 1, "local_world": 2, "memory_bytes": 2**34}
    product = {"precision": "fp32", "kind": "forward", "rows": 256, "columns": 256, "depth": 256, "seconds": 1e-2}
    probe = written(tmp_path, machine=machine, products=[product], attention=[], memory=[], collectives=[])
    options = ["--cluster", "workstation-cpu", "--framework", "transformers-cpu", "--profile", str(tmp_path / "m")]
    done = planner("calibrate", "--probe", str(probe), *options)
    assert done.returncode == 0, done.stderr
    assert "by default with fp32 products, transformers-cpu's figures" in " ".join(done.stdout.split())
    own = str(tmp_path / "m" / "clusters" / "workstation-cpu.toml")
    answer = planner("estimate", "gpt2", "--cluster", own, "--dp", "2", "--global-batch", "2").stdout
    assert "products in fp32" in answer
    assert "(transformers-cpu)" in answer
    assert "of 8.00 GiB" in answer


def test_host_times_are_written_to_the_framework_that_is_named(tmp_path: Path) -> None:
    kinds = (("forward", 3e-4), ("plain", 1e-3), ("tensor", 3e-3))
    probe = str(written(tmp_path, host=[{"kind": kind, "seconds": s} for kind, s in kinds]))
    options = ["--cluster", "dgx-h100", "--framework", "fsdp", "--profile", str(tmp_path / "m")]
    done = planner("calibrate", "--probe", probe, *options)
    assert done.returncode == 0, done.stderr
    tensor = [line.split() for line in done.stdout.splitlines() if "host_tensor_us" in line]
    assert [line[2:5] for line in tensor] == [["0", "1e+03", "new"]]
    framework = load_framework(str(tmp_path / "m" / "frameworks" / "fsdp.toml"))
    assert framework.host_layer_forward_s == pytest.approx(3e-4)
    refused = planner("calibrate", "--probe", probe, "--cluster", "dgx-h100", "--framework", "none-such")
    assert refused.returncode == 2
    assert "none-such" in refused.stderr


def test_the_probe_of_a_real_h200() -> None:
    """Measured on 26 November 2026. Products and memory are within the profile's spread; hosts' figures stand in it."""
    probe = read_probe(Path(__file__).parents[2] / "benchmarks" / "h200" / "probe.json")
    cluster, framework = load_cluster("dgx-h200"), load_framework("torchtitan")
    found = {(f.figure.field, *f.figure.keys): f.value for f in probed_figures(probe, cluster, framework)}
    e = cluster.accelerator.efficiency
    assert found["matrix_fraction", "bf16"] == pytest.approx(e.matrix_fraction["bf16"], rel=0.05)
    assert found["memory_fraction",] == pytest.approx(e.memory_fraction, rel=0.05)
    assert found["flash_backward", "flash3"] == pytest.approx(e.flash_backward["flash3"], rel=0.05)
    pace = (found["host_layer_forward_s",] + found["host_layer_backward_s",]) / (
        framework.host_layer_forward_s + framework.host_layer_backward_s
    )
    assert found["host_sharded_s",] == pytest.approx(pace * framework.host_sharded_s, rel=0.01)
    assert found["host_tensor_s",] == pytest.approx(pace * framework.host_tensor_s, rel=0.01)


def test_a_processor_s_probe_is_no_gpu_s(tmp_path: Path) -> None:
    processor = {"device": "cpu", "name": "x86_64", "torch": "2.13.0"}
    with pytest.raises(InputError, match="ran on a processor, --cluster dgx-h100 has GPUs"):
        probed_figures(read_probe(written(tmp_path, machine=processor)), load_cluster("dgx-h100"))
    with pytest.raises(InputError, match="ran on a GPU, --cluster workstation-cpu has processors"):
        probed_figures(read_probe(written(tmp_path)), load_cluster("workstation-cpu"))


def test_the_command_says_on_stdout_what_to_do_with_the_script(tmp_path: Path) -> None:
    done = planner("probe", "--write", str(tmp_path / "probe.py"))
    assert not done.stderr
    assert "run it with python, or with torchrun on a node" in " ".join(done.stdout.split())
