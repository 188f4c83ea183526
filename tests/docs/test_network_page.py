"""The page of networks shows what its example of shared links prints."""

from pathlib import Path

from tests.commands import planner
from tests.docs.snippets import snippets

PAGE = Path(__file__).parents[2] / "docs" / "network.md"


def test_the_example_of_shared_links_prints_what_the_page_shows():
    blocks = snippets(PAGE)
    at = next(i for i, block in enumerate(blocks) if "--links --background" in block.text)
    done = planner(*blocks[at].text.split()[1:], COLUMNS="100")
    assert done.stdout.rstrip() == blocks[at + 1].text.rstrip()
