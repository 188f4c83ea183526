"""`planner validate`: predictions beside measured runs."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.unfold import unfolded


@unfolded
def command(
    files: Annotated[list[Path] | None, typer.Argument(help="CSV files of measured runs; none: the shipped.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Write a CSV, a row per run.")] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="A folder of profiles to use before the shipped (planner calibrate --from ... --profile)."),
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option(help="Known runs of such a machine, whose figures follow them; they aren't scored.")
    ] = None,
    *,
    out: o.Output,
) -> None:
    """Predict measured runs and score the predictions, by source and overall.

    Per source: mape, bias, max_error of the step time; Spearman's rank_correlation; regret of the planner's pick;
    oom_accuracy (missed: predicted to fit, did not; false: the reverse); memory_mape; in_interval: the share of steps
    in their interval of 80 %, made without the run's publication. Columns of a CSV: docs/measured-runs.md.

    Example: planner validate measured_runs/hagemann_llama_a100.csv --predictions out.csv
    """
    from planner.api.validated import validate
    from planner.base.files import write_text
    from planner.validation.score import predictions_csv

    o.check_files({"--predictions": (predictions, ".csv", "")})
    with o.working("predicting measured runs"):
        answer = validate(files or (), profiles=profiles, anchor=anchor)
    if predictions is not None:
        write_text(predictions, predictions_csv(answer.predictions, answer.ends))
    out.show(answer)
