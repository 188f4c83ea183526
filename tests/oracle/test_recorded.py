"""planner's figures of a layer beside what frameworks' own code showed on fake tensors (docs/oracle.md).

The records are remade by `python benchmarks/oracle/remake.py FRAMEWORK`; nothing here needs a framework.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "oracle"))

import compare
from configurations import CONFIGURATIONS, title

RUNS = [(name, run) for name in compare.PROFILES for run in compare.recorded(name)]
EXACT, KEPT = 1e-4, 0.02


def test_there_are_forty_configurations_and_each_is_recorded():
    assert len(RUNS) >= 40
    for name in compare.PROFILES:
        assert [run["asked"] for run in compare.recorded(name)] == CONFIGURATIONS[name]


@pytest.mark.parametrize(("framework", "run"), RUNS, ids=lambda x: x if isinstance(x, str) else title(x["asked"]))
def test_a_layer_is_as_the_framework_runs_it(framework, run):
    """Parameters, products' FLOP, bytes sent are equal, bytes kept within 2 %, once named differences are added."""
    rows = compare.figures(framework, run)
    assert {"parameters", "forward FLOP", "backward FLOP", "kept bytes"} <= {what for what, *_ in rows}
    for what, value, theirs, named in rows:
        bound = KEPT if what == "kept bytes" else EXACT
        assert abs(compare.left(value, theirs, named)) <= bound, (what, value, theirs, named)


def test_names_explain_little():
    """What has a name is less than a tenth of what is kept, but where a whole layer is repeated and little is kept."""
    for framework, run in RUNS:
        if run["asked"].get("recompute", "none") == "none":
            kept = next(row for row in compare.figures(framework, run) if row[0] == "kept bytes")
            assert abs(sum(kept[3].values())) < 0.15 * kept[2], (framework, run["asked"])
