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

    Besides the presets: `x-N`, the X family of Lamy-Poirier 2021; a Hugging Face config.json; a TOML file with a
    [model] table: family, layers, hidden, heads, vocab, seq_len, and what differs from the family.

    Example: planner models llama-13b
    """
    from planner.api.answer import Answer
    from planner.models import load_model, model_names
    from planner.report.plain_table import plain_table
    from planner.report.records import model_record

    if name is not None:
        record = model_record(load_model(name))
        table = plain_table("field", "value", numbers=(1,))
        for key, value in record.items():
            table.add_row(key, f"{value:,}" if key.endswith("parameters") else str(value))
        o.show(Answer("", record, table), json)
        return
    rows = [model_record(load_model(n)) for n in model_names()]
    heads = ("model", "parameters", "layers", "hidden", "heads", "vocab", "seq_len")
    table = plain_table(*heads, numbers=tuple(range(1, 7)))
    for r in rows:
        columns = ("parameters", "num_layers", "hidden", "num_heads", "vocab", "seq_len")
        table.add_row(r["name"], *(f"{r[c]:,}" for c in columns))
    o.show(Answer("", {"models": rows}, table), json)
