"""`planner models`: list presets, show one."""

from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o


def command(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset or file in full.", autocompletion=complete.models)
    ] = None,
    json: o.Json = False,
) -> None:
    """List the model presets, or show one with its shape and parameter counts.

    Besides the presets: `x-N`, the X family of Lamy-Poirier 2021; a Hugging Face config.json; a TOML file whose
    table `model` has family, layers, hidden, heads, vocab, seq_len, and what differs from the family.

    Example: planner models llama-13b
    """
    from planner.api.answer import Answer
    from planner.models import load_model, model_names
    from planner.report.plain_table import plain_table
    from planner.report.records import model_record

    if name is not None:
        record = model_record(load_model(name))
        told = {key: f"{value:,}" if key.endswith("parameters") else str(value) for key, value in record.items()}
        o.show(Answer("", record, plain_table("field", "value", numbers=(1,), rows=told.items())), json)
        return
    rows = [model_record(load_model(n)) for n in model_names()]
    heads = ("model", "parameters", "layers", "hidden", "heads", "vocab", "seq_len")
    columns = ("parameters", "num_layers", "hidden", "num_heads", "vocab", "seq_len")
    cells = ([r["name"], *(f"{r[c]:,}" for c in columns)] for r in rows)
    o.show(Answer("", {"models": rows}, plain_table(*heads, numbers=tuple(range(1, 7)), rows=cells)), json)
