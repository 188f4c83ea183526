"""Record anew what frameworks run: python benchmarks/oracle/remake.py FRAMEWORK [PART OF A TITLE].

FRAMEWORK: torchtitan, megatron-core, transformers or deepspeed; its package in this environment, beside PyTorch for
CPUs (`pip install planner[oracle]`; docs/oracle.md). The result is tests/oracle/recorded/FRAMEWORK.json.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from configurations import CONFIGURATIONS, title

RECORDED = Path(__file__).parents[2] / "tests" / "oracle" / "recorded"
MODULES = {
    "torchtitan": "torchtitan_model",
    "megatron-core": "megatron_core",
    "transformers": "transformers_fsdp",
    "deepspeed": "deepspeed_zero",
}


def written(found: list[dict[str, Any]], framework: str) -> str:
    """The file: one line a configuration."""
    head = {"framework": framework, "version": version(framework), "torch": version("torch").split("+")[0]}
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in found)
    return f'{{"software": {json.dumps(head)},\n"runs": [\n{lines}\n]}}\n'


def main(framework: str, part: str = "") -> None:
    """Record all configurations of a framework, or those whose title has a part, which are printed instead."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    module, found = import_module(MODULES[framework]), []
    for asked in CONFIGURATIONS[framework]:
        if part not in title(asked):
            continue
        print(title(asked), file=sys.stderr, flush=True)
        found.append({"asked": asked} | module.observe(asked))
    if part:
        print(json.dumps(found, indent=1))
        return
    RECORDED.mkdir(parents=True, exist_ok=True)
    (RECORDED / f"{framework}.json").write_text(written(found, framework), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
