"""One layer of the 22B model, forward and backward, beside the published milliseconds.

Korthikanti et al. 2022 (arXiv 2205.05198), Table 4: A100-80GB, tensor parallelism 8, micro-batch 4; no fit has seen it.
`korthikanti_2022_layer_times.csv` beside this file holds the table.
"""

import csv
from pathlib import Path

import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute
from planner.models import load_model
from planner.setup import Setup
from planner.step.step_costs import step_costs

ROWS = list(csv.DictReader((Path(__file__).parent / "korthikanti_2022_layer_times.csv").read_text().splitlines()))
COLUMNS = ("fwd_ms", "bwd_ms", "combined_ms")
TOLERANCE = 0.08


def predicted_ms(row: dict[str, str]) -> dict[str, float]:
    model = load_model("megatron-22b")
    assert (model.hidden, model.num_heads, model.seq_len) == tuple(int(row[c]) for c in ("hidden", "heads", "seq_len"))
    layouts = Layouts.of(
        tp=int(row["tp"]), micro_batch=int(row["micro_batch"]), global_batch=int(row["micro_batch"]), zero=0,
        attention=Attention.FUSED, precision=Precision.FP16, sequence_parallel=row["sequence_parallel"] == "True",
        recompute=Recompute[row["recompute"].upper()],
    )  # fmt: skip
    layer = step_costs(Setup(model, load_cluster("selene"), load_framework("megatron-lm")), layouts).layer
    forward, backward = float(layer.forward_s[0]) * 1e3, float(layer.backward_s[0]) * 1e3
    return {"fwd_ms": forward, "bwd_ms": backward, "combined_ms": forward + backward}


def test_the_whole_table_is_here():
    assert [float(row["combined_ms"]) for row in ROWS] == [19.6, 19.0, 27.2, 20.9, 20.3]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", ROWS, ids=[row["experiment"] for row in ROWS])
def test_a_layer_of_korthikanti_table_4(row, column):
    assert predicted_ms(row)[column] == pytest.approx(float(row[column]), rel=TOLERANCE)


def test_variants_are_in_the_measured_order():
    """What sequence parallelism and either recomputation cost or gain, forward and backward, has the measured sign."""
    ours = {row["experiment"]: predicted_ms(row) for row in ROWS}
    theirs = {row["experiment"]: {c: float(row[c]) for c in COLUMNS} for row in ROWS}
    for name in theirs:
        for other in theirs:
            for column in COLUMNS:
                if theirs[name][column] < theirs[other][column]:
                    assert ours[name][column] < ours[other][column], (name, other, column)
