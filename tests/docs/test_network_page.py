"""The page of networks shows what its examples print."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import planner
from tests.docs.snippets import snippets

PAGE = Path(__file__).parents[2] / "docs" / "network.md"


def test_the_example_of_shared_links_prints_what_the_page_shows():
    blocks = snippets(PAGE)
    at = next(i for i, block in enumerate(blocks) if "--links --background" in block.text)
    done = planner(*blocks[at].text.split()[1:], COLUMNS="100")
    assert done.stdout.rstrip() == blocks[at + 1].text.rstrip()


ROWS = re.findall(r"^\| (?:X_160|LLaMA|improved)[^|]*\| ([\d.]+) s \| ([\d.]+) s \|", PAGE.read_text(), re.MULTILINE)
COMMANDS = re.findall(r"^planner (fastest .*--run --json)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("command", "row"), list(zip(COMMANDS, ROWS, strict=True)))
def test_fastest_gives_the_figures_of_the_first_question(command, row):
    """The layout to run is `recommend`'s, to the last digit."""
    assert len(ROWS) == 4
    words = shlex.split(command)
    found = json.loads(planner(*words).stdout)["results"][0]
    to_run, shortest = found["run"]["layout"], found["shortest"]["layout"]["step_time_s"]
    assert (f"{to_run['step_time_s']:.2f}", f"{shortest:.2f}") == row
    held = [w for key in ("--cluster", "--network", "--framework", "--schedule", "--zero") if key in words
            for w in (key, words[words.index(key) + 1])]  # fmt: skip
    nodes = [
        w for name in ("gpus_per_node", "nics_per_node") for w in ("--figure", f"{name}=16") if "--node-size" in words
    ]
    size = ["--gpus", str(found["shortest"]["gpus"]), "--global-batch", str(found["shortest"]["global_batch"])]
    best = json.loads(planner("recommend", words[1], *held, *nodes, *size, "--json").stdout)["best"][0]
    assert (best["step_time_s"], best["layout"]) == (to_run["step_time_s"], to_run["layout"])
