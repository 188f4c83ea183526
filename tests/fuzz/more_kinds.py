"""Sound inputs that other commands read: groups of machines, a probe, a pull request's script, plans side by side."""

from __future__ import annotations

import json

from tests.calibration.test_probe import made
from tests.fuzz.kind import Kind

__all__ = ["more_kinds"]

GROUPS = """
name = "mixed"
network = "ethernet-100g"
[[groups]]
cluster = "dgx-h100"
gpus = 2
[[groups]]
cluster = "dgx-a100-80gb"
gpus = 2
"""


def more_kinds(model: str, launch: str, plan: dict[str, object], runs: list[list[str]]) -> tuple[Kind, ...]:
    """Of the examples that other kinds have too."""
    small = "--cluster dgx-a100-80gb --tp 1 --pp 1"
    return (
        Kind(name="mixed.toml", examples=(GROUPS,), slow=True,
             commands=("mixed gpt2 @mixed.toml --global-batch 8", "mixed gpt2 @mixed.toml --global-batch 8 --json")),
        Kind(name="probe.json", examples=(made(),),
             commands=("calibrate --probe @probe.json --cluster dgx-h100",
                       "calibrate --probe @probe.json --cluster dgx-h100 --json")),
        Kind(name="runs.csv", examples=(runs,), slow=True,
             commands=("calibrate --from @runs.csv --max-evaluations 1 --json",)),
        Kind(name="launch.sh", examples=(launch,),
             commands=("check @launch.sh --cluster selene --gpus 16",
                       "check @launch.sh --cluster selene --gpus 16 --json")),
        Kind(name="plan.json", examples=(plan,),
             commands=("compare @plan.json @plan.json --cluster dgx-a100-80gb",
                       "compare @plan.json @plan.json --cluster dgx-a100-80gb --json")),
        Kind(name="gbit.csv", examples=([["-", "1400"], ["900", "-"]],), beside={"place.json": _on_two_nodes(plan)},
             commands=("place @place.json --bandwidth @gbit.csv", "place @place.json --bandwidth @gbit.csv --json",
                       "place @place.json --bandwidth @gbit.csv --write @out.txt --slots")),
        Kind(name="model.toml", examples=(model,), slow=True,
             commands=("compare @model.toml --cluster dgx-a100-80gb --dp 2 --global-batch 8",
                       f"fewest @model.toml {small} --max-gpus 4 --tokens 1e9 --batch-tokens 2048",
                       f"fastest @model.toml {small} --max-gpus 4 --tokens 1e9",
                       f"network @model.toml {small} --gpus 16 --global-batch 16 --json",
                       f"sites @model.toml {small} --sites 2x2 --gbit 1 --global-batch 16 --tokens 1e9 --json")),
    )  # fmt: skip


def _on_two_nodes(plan: dict[str, object]) -> str:
    layout = plan["layout"]
    assert isinstance(layout, dict)
    return json.dumps(plan | {"gpus": 16, "layout": layout | {"dp": 8}})
