"""`planner validate`: predictions beside measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o

FITTED = (
    "The profiles were fitted to most of these runs (docs/accuracy.md): mape is the error of a fit. held, held out: "
    "the same of fits that had not seen the publication (of vtrain-single-h1024 and megatron-bridge-gb300 the part "
    "that they predict)."
)


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="CSV files of measured runs; none: the shipped.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="Write a CSV, a row a run.")] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="A folder of profiles to use before the shipped (planner calibrate --from ... --profile)."),
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option(help="Known runs of such a machine, whose figures follow them; they aren't scored.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Predict measured runs and score the predictions, by source and overall.

    Per source: mape, bias, max_error of the step time; Spearman's rank_correlation; regret of the planner's pick;
    oom_accuracy (missed: predicted to fit, did not; false: the reverse); memory_mape; in_interval: the share of steps
    in their interval of 80 %, made without the run's publication. Columns of a CSV: docs/measured-runs.md.

    Example: planner validate measured_runs/hagemann_llama_a100.csv --predictions out.csv
    """
    from collections import defaultdict
    from dataclasses import asdict

    import numpy as np

    from planner.api.anchored import anchor_record, predicted_runs, told_lines
    from planner.base.errors import InputError
    from planner.report.validation import publications_view, scores_view
    from planner.validation import read_runs, scores, shipped_files
    from planner.validation.interval import held_out_mape, held_shares
    from planner.validation.own_profiles import loaders
    from planner.validation.predictions import predictions_csv
    from planner.validation.publications import publications_of

    paths = files or shipped_files()
    runs = [run for path in paths for run in read_runs(path)]
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: no runs in the file")
    if predictions is not None:
        from planner.base.files import check_writable

        check_writable(predictions)
    cluster_of, framework_of = loaders(profiles)
    with o.working(f"predicting {len(runs)} runs"):
        result, ends, known = predicted_runs(runs, anchor, cluster_of, framework_of)
        runs = result.runs
        lost = int(np.sum(~np.isfinite(result.step_time_s)))
        if lost == len(runs):
            raise InputError(f"{runs[0].path}:{runs[0].line}: no run can be predicted: {result.reasons[0]}")
        inside = held_shares(result, ends)
    by_source, overall = scores(result)
    for name, s in [*by_source.items(), ("overall", overall)]:
        s["in_interval"] = inside[name]
    unpredicted = [
        {"file": str(run.path), "line": run.line, "source": run["source"], "run": run["run"], "reason": reason}
        for run, reason in zip(runs, result.reasons, strict=True)
        if reason
    ]
    if predictions is not None:
        from planner.base.files import write_text

        write_text(predictions, predictions_csv(result, ends))
    cited = publications_of(by_source)
    unseen = None if files or profiles or anchor else held_out_mape()
    if json:
        if unseen is not None:
            for name, s in [*by_source.items(), ("overall", overall)]:
                s["held_out_mape"] = unseen.get(name)
        o.print_json(
            {
                "sources": by_source,
                "overall": overall,
                "publications": [asdict(p) for p in cited],
                "filled_cells": result.filled_cells,
                "unpredicted": unpredicted,
            }
            | ({} if known is None else {"anchor": anchor_record(known)})
        )
        return
    o.print_view(scores_view(by_source, overall, unseen))
    if known is not None:
        o.print_view("", *told_lines(known))
    if unseen is not None:
        o.print_view("", FITTED)
    if cited:
        o.print_view("", publications_view(cited))
    o.print_view("", f"{result.filled_cells} empty cells were filled by rule; {lost} runs could not be predicted.")
    by_reason = defaultdict(list)
    for row in unpredicted:
        by_reason[row["reason"]].append(row)
    for reason, (first, *more) in by_reason.items():
        others = f" and {len(more)} more" if more else ""
        o.print_view(f"  {first['file']}:{first['line']} {first['run']}{others}: {reason}")
