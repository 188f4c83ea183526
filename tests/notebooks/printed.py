"""What notebooks print under their figures: commands, and the points that each of them gives."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from planner.cli import app

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def code(path: Path) -> list[dict]:
    """The code cells of a notebook."""
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def printed(path: Path) -> dict[str, list[str]]:
    """Each command in a notebook's output, and the lines below it that are set in."""
    out = [o for cell in code(path) for o in cell["outputs"] if o["output_type"] == "stream"]
    text = "".join("".join(o["text"]) for o in out)
    found = re.findall(r"^planner ([a-z].*)((?:\n    .*)+)", text, re.MULTILINE)
    return {command: [line.strip() for line in lines.strip().splitlines()] for command, lines in found}


def recommended() -> tuple[Path, str, list[str]]:
    """Notebook 01's command, which stands in its text, and the seconds of the layout that it recommends."""
    path = NOTEBOOKS / "01_recommend_a_layout.ipynb"
    text = path.read_text(encoding="utf-8")
    (command,) = re.findall(r"`planner (recommend [^`]+)`", text)
    (seconds,) = re.findall(r"step_time_s +mfu .*\\n\",\s+\" +([\d.]+) ", text)
    return path, command, [seconds]


def every() -> list[tuple[Path, str, list[str]]]:
    """All of them, of all notebooks."""
    below = [(path, *one) for path in sorted(NOTEBOOKS.glob("*.ipynb")) for one in printed(path).items()]
    return [recommended(), *below]


def answered(command: str) -> list[str]:
    """What the command gives today, in the words in which its notebook prints it."""
    done = CliRunner().invoke(app, [*command.removesuffix(" --json").split(), "--json"])
    assert done.exit_code == 0, f"planner {command}: {done.output}"
    record = json.loads(done.stdout)
    if command.startswith("recommend"):
        return [f"{record['best'][0]['step_time_s']:.3f}"]
    if command.startswith("largest"):
        (kind,) = record["kinds"]
        return [f"falls at {kind['falls_at_flop']:.2g} FLOP, the largest {kind['largest']['flop']:.2g} FLOP"]
    if command.endswith(" --json"):  # arithmetic intensities
        shown = [one for one in record["results"] if one["strategy"] in ("3d", "3d:improved")]
        return [f"{one['strategy']} { {k: round(v) for k, v in one['flop_per_byte'].items()} }" for one in shown]
    return [f"{one['strategy']} {_point(one.get('shortest', one))}" for one in record["results"]]


def _point(one: dict) -> str:
    return "none" if "days" not in one else f"{one['days']:.3g} days {one['gpus']:,} GPUs"
