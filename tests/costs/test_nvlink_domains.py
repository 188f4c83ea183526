"""NVLink domains of hundreds of GPUs: a cluster file, or two figures."""

from pathlib import Path

import pytest

from planner.costs.network.groups import place
from planner.hardware import load_cluster
from planner.layouts import Layouts, Recompute
from planner.question import load_setup
from planner.step.estimate import estimate
from planner.step.legality import legal

SHIPPED = Path(__file__).parents[2] / "hardware_profiles" / "clusters" / "gb200-nvl72.toml"


@pytest.fixture(scope="module")
def rack(tmp_path_factory):
    """A file of racks of 576 GPUs, each with a NIC."""
    path = tmp_path_factory.mktemp("racks") / "gb200-nvl576.toml"
    path.write_text(SHIPPED.read_text().replace("nvl72", "nvl576").replace("{ value = 72,", "{ value = 576,"))
    return load_cluster(str(path))


def test_a_file_and_figures_say_the_same(rack):
    figures = load_cluster("gb200-nvl72", changes={"gpus_per_node": 576, "nics_per_node": 576})
    assert (rack.gpus_per_node, rack.nics_per_node) == (figures.gpus_per_node, figures.nics_per_node) == (576, 576)
    assert rack.nvlink_gpus == 576
    assert rack.gpus_per_host == 4


def test_a_group_of_576_is_on_one_node(rack):
    shipped = load_cluster("gb200-nvl72")
    assert (place(rack, 576, 1).nodes, place(shipped, 576, 1).nodes) == (1, 8)
    assert (place(rack, 1152, 1).nodes, place(shipped, 1152, 1).nodes) == (2, 16)


def test_experts_over_many_ranks_are_faster_in_a_larger_domain(rack):
    """Groups of 8 and of 64 lie in a rack of 72 too; of 128 half is beyond its NICs."""
    x = Layouts.of(
        dp=128, pp=4, ep=[8, 64, 128], micro_batch=1, global_batch=4096, recompute=Recompute.FULL, zero=1, precision=2
    )
    setups = [load_setup("deepseek-v3", cluster) for cluster in (rack, "gb200-nvl72")]
    assert all(legal(one.model, one.cluster, x).all() for one in setups)
    wide, narrow = (estimate(one, x) for one in setups)
    assert wide.time.expert_comm_s[:2].tolist() == narrow.time.expert_comm_s[:2].tolist()
    assert narrow.time.expert_comm_s[2] > 1.4 * wide.time.expert_comm_s[2]
    assert wide.step_time_s[2] < 0.96 * narrow.step_time_s[2]
