"""`planner mcp` as an agent meets it: over standard input and output, by the library's own client."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from planner.cli.mcp import QUESTIONS

pytestmark = pytest.mark.extra
SMALL = {"model": "llama-13b", "cluster": "dgx-a100-80gb", "global_batch": 64}


@pytest.fixture(scope="module")
def said():
    """What the tools are, and what they answer to some questions, in one session with a server."""
    mcp = pytest.importorskip("mcp", reason="no mcp: pip install '.[mcp]'")
    anyio = pytest.importorskip("anyio")
    questions = {
        "recommend": ("recommend", {**SMALL, "gpus": 16, "tp": [2, 4], "pp": [2], "why": ["tp=1"], "network": None}),
        "estimate": ("estimate", {**SMALL, "tp": 2, "gpus": 8}),
        "schedule": ("schedule", {"pp": 4, "name": "zb-h1"}),
        "a flag unset": ("recommend", {**SMALL, "gpus": 16, "tp": [2], "pp": [2], "sequence_parallel": False}),
        "wrong": ("recommend", {**SMALL, "gpus": -1}),
        "an option as a model": ("recommend", {**SMALL, "gpus": 16, "model": "--save=x.json"}),
        "a file to write": ("recommend", {**SMALL, "gpus": 16, "save": "x.json"}),
        "no question": ("train", {}),
        "several for one": ("recommend", {**SMALL, "gpus": [16]}),
        "tokens as a text": (
            "recommend",
            {"model": "llama-13b", "cluster": "dgx-a100-80gb", "gpus": 16, "batch_tokens": "1M"},
        ),
    }

    async def session():
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "planner", "mcp"])
        async with mcp.Client(server) as client:
            tools = await client.list_tools()
            return tools.tools, {name: await client.call_tool(*asked) for name, asked in questions.items()}

    # Playwright, where a worker has its browser open, keeps an event loop running in the main thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, session).result()


def test_each_question_is_a_tool_that_writes_nothing(said):
    tools = {tool.name: tool for tool in said[0]}
    assert set(tools) == set(QUESTIONS)
    for tool in tools.values():
        fields = tool.input_schema["properties"]
        assert not {"save", "html", "png", "svg", "csv", "pdf", "trace", "export", "markdown"} & set(fields), tool.name
        assert all(field["description"] for field in fields.values())
    schema = tools["recommend"].input_schema
    assert schema["properties"]["gpus"] == {"description": "GPUs to use.", "type": "integer"}
    assert schema["properties"]["tp"]["type"] == "array"
    assert schema["properties"]["batch_tokens"]["type"] == ["number", "string"]
    assert schema["properties"]["objective"]["enum"] == ["time", "throughput", "cost", "memory"]
    assert "model" in schema["required"]


def test_answers_are_the_commands_json(said):
    def answer(name):
        assert not said[1][name].is_error, said[1][name].content
        return json.loads(said[1][name].content[0].text)

    found = answer("recommend")
    assert found["gpus"] == 16
    assert {one["layout"]["tp"] for one in found["best"]} <= {2, 4}
    assert found["why"]
    assert answer("estimate")["layout"]["dp"] == 4
    assert answer("tokens as a text")["global_batch"] == 512
    assert answer("schedule")["schedule"] == "zb-h1"
    assert not any(one["layout"]["sequence_parallel"] for one in answer("a flag unset")["best"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrong", "planner: --gpus is -1"),
        ("an option as a model", "planner: --save=x.json: can't be read"),
        ("a file to write", "save is unknown; allowed: model, "),
        ("several for one", "gpus is [16]; allowed: one value"),
        ("no question", "train is unknown; allowed: recommend, "),
    ],
)
def test_a_fault_is_one_line(said, name, text):
    answer = said[1][name]
    assert answer.is_error
    assert answer.content[0].text.startswith(text)
    assert "\n" not in answer.content[0].text
