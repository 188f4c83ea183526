"""Every figure of a cluster is shown with a value and where it comes from."""

import pytest

from planner.hardware import changed_cluster, load_cluster, profile_names
from planner.report.records import figure_sources


@pytest.mark.parametrize("name", profile_names("clusters"))
def test_no_figure_is_shown_as_none(name):
    rows = figure_sources(load_cluster(name))
    assert all(value and value != "None" for _, value, _ in rows)
    names = [figure for figure, _, _ in rows]
    assert len(set(names)) == len(names)


def test_a_protocol_for_small_messages_is_shown_where_it_was_measured():
    shown = {figure: source for figure, _, source in figure_sources(load_cluster("selene"))}
    assert "nccl-tests" in shown["node_link.small_latency_us"]
    assert "nccl-tests" in shown["node_link.small_fraction"]
    assert "network.small_latency_us" not in shown


def test_what_a_profile_does_not_state_says_so():
    values = {figure: value for figure, value, _ in figure_sources(load_cluster("dgx-h100"))}
    assert values["accelerator.price_usd_per_hour"] == "not stated"


@pytest.mark.parametrize("name", ["dgx-h100", "selene", "gb200-nvl72"])
def test_the_names_are_those_that_a_figure_is_changed_by(name):
    """Each that has a range is taken by `--figure` with the value that is shown, and is the cluster's again."""
    cluster = load_cluster(name)
    rows = {figure: value for figure, value, _ in figure_sources(cluster)}
    for figure in ("network.bandwidth_gbit_per_s", "accelerator.memory_gib", "accelerator.peak_tflops.bf16"):
        same = changed_cluster(name, {figure: float(rows[figure])})
        assert dict(figure_rows(same))[figure] == rows[figure]


def figure_rows(cluster):
    return [(figure, value) for figure, value, _ in figure_sources(cluster)]
