"""The layers of a layout split by cost, as `planner partition` prints them."""

from planner.api.compared import partition
from planner.question import load_setup


def test_layers_that_virtual_stages_cannot_share_evenly():
    """DeepSeek-V3's 61 layers over 32 virtual stages: two each, but beside the embedding and the head."""
    answer = partition(
        load_setup("deepseek-v3", "dgx-h100"), dp=64, tp=2, pp=8, ep=64, etp=1, recompute="fine",
        sequence_parallel=True, virtual_stages=4, global_batch=1024,
    )  # fmt: skip
    layers = answer.to_dict()["layers"]
    assert (len(layers), sum(layers), max(layers)) == (32, 61, 2)


def test_stages_that_are_given_are_a_layout_whose_layers_can_be_split():
    """Given stages need an even split: partition's own must not stand beside them."""
    given = {"dp": 64, "tp": 2, "pp": 8, "ep": 64, "etp": 1, "recompute": "fine", "sequence_parallel": True}
    setup = load_setup("deepseek-v3", "dgx-h100")
    answer = partition(setup, **given, pipeline_layout="Et*2|(tt|)*29t|L", global_batch=1024)
    assert sum(answer.to_dict()["layers"]) == 61
