"""`planner models`: list presets, show one."""

from __future__ import annotations

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
    from planner.models import load_model, model_names
    from planner.report import records
    from planner.report.plain_table import plain_table

    if name is not None:
        record = records.model_record(load_model(name))
        if json:
            o.print_json(record)
        else:
            table = plain_table("field", "value", numbers=(1,))
            for key, value in record.items():
                table.add_row(key, f"{value:,}" if key.endswith("parameters") else str(value))
            o.print_view(table)
        return
    rows = [records.model_record(load_model(n)) for n in model_names()]
    if json:
        o.print_json({"models": rows})
        return
    table = plain_table(
        "model", "parameters", "layers", "hidden", "heads", "vocab", "seq_len", numbers=tuple(range(1, 7))
    )
    for r in rows:
        columns = ("parameters", "num_layers", "hidden", "num_heads", "vocab", "seq_len")
        table.add_row(r["name"], *(f"{r[c]:,}" for c in columns))
    o.print_view(table)
