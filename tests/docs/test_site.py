"""The documentation's site builds without a warning, and its pictures are what planner draws."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.main import get_command

from planner.cli import app

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
NO_MKDOCS = importlib.util.find_spec("mkdocstrings") is None


class Addresses(HTMLParser):
    """What a page loads as it opens: scripts, styles, pictures."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if NO_MKDOCS:
        pytest.skip("needs pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.extra
def test_every_page_is_in_the_site_and_opens_without_the_network(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = site / (name.parent if name.name == "index" else name) / "index.html"
        parser = Addresses()
        parser.feed(built.read_text(encoding="utf-8"))
        assert parser.loaded
        assert not [a for a in parser.loaded if a.startswith(("http", "//"))], page.name


@pytest.mark.slow
@pytest.mark.extra
def test_the_reference_is_made_of_the_docstrings(site):
    text = (site / "reference" / "costs" / "index.html").read_text(encoding="utf-8")
    assert "tile and wave quantization" in text
    text = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("recommend", "estimate", "simulate", "LayoutEstimate", "step_time_s", "UnknownNameError"):
        assert name in text
    assert re.search(r"Raises:.*?InputError", re.sub(r"<[^>]+>", "", text), re.DOTALL)


@pytest.mark.slow
@pytest.mark.extra
def test_every_command_has_its_help_in_the_site(site):
    text = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    for name in get_command(app).commands:
        assert f'id="planner-{name}"' in text
    assert "Batch size per step, in sequences" in text


@pytest.mark.slow
def test_the_pictures_are_what_the_tool_draws(tmp_path):
    """The script runs, and each picture that is kept has the words of the one it draws today."""
    # One takes a quarter of a minute; those of sweeps are drawn by their page's own commands.
    names = sorted(p.stem for p in PICTURES.iterdir() if p.stem != "shortest" and not p.stem.startswith("sweep-"))
    subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_pictures.py"), *names, "--folder", str(tmp_path)],
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert sorted(p.stem for p in tmp_path.iterdir()) == names

    def words(path):
        texts = ["".join(t.itertext()) for t in ElementTree.parse(path).iter() if t.tag.endswith("text")]
        return [t for t in texts if not re.fullmatch(r"[\d.,]+|.*layouts.*|.*10.*", t.strip())]

    for path in tmp_path.iterdir():
        assert len(words(path)) > 2
        if path.stem not in ("search", "shortest", "parts", "step"):  # those follow the calibration
            assert words(path) == words(PICTURES / path.name), path.name


def test_every_picture_is_shown_and_every_shown_picture_is_there():
    pages = "\n".join(p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    shown = {Path(name).name for name in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", pages)}
    assert shown == {p.name for p in PICTURES.iterdir()}
