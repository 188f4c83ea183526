"""`planner validate`: predictions beside measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="CSV files of measured runs; none: the shipped.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Write a CSV, a row a run.")] = None,
    json: o.Json = False,
) -> None:
    """Predict measured runs and score the predictions, by source and overall.

    Per source: mape, bias, max_error of the step time; Spearman's rank_correlation; regret of the planner's pick;
    oom_accuracy (missed: predicted to fit, did not; false: the reverse); memory_mape. The columns of a CSV are
    described in docs/measured-runs.md.

    Example: planner validate measured_runs/hagemann_llama_a100.csv --predictions out.csv
    """
    import numpy as np

    from planner.errors import InputError
    from planner.report import tables
    from planner.validation import predict, read_runs, scores, shipped_files
    from planner.validation.predictions import predictions_csv

    paths = files or shipped_files()
    runs = [run for path in paths for run in read_runs(path)]
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: no runs in the file")
    if predictions is not None:
        from planner.files import check_writable

        check_writable(predictions)
    with o.working(f"predicting {len(runs)} runs"):
        result = predict(runs)
    by_source, overall = scores(result)
    unpredicted = [
        {"file": str(run.path), "line": run.line, "source": run["source"], "run": run["run"], "reason": reason}
        for run, reason in zip(runs, result.reasons, strict=True)
        if reason
    ]
    if predictions is not None:
        from planner.files import write_text

        write_text(predictions, predictions_csv(result))
    if json:
        o.print_json(
            {
                "sources": by_source,
                "overall": overall,
                "filled_cells": result.filled_cells,
                "unpredicted": unpredicted,
            }
        )
        return
    o.print_view(tables.validation_view(by_source, overall))
    lost = int(np.sum(~np.isfinite(result.step_time_s)))
    o.print_view("", f"{result.filled_cells} empty cells were filled by rule; {lost} runs could not be predicted.")
    for row in unpredicted:
        o.print_view(f"  {row['file']}:{row['line']} {row['run']}: {row['reason']}")
