"""What the claim's reason says of Fujii et al.'s own formulas: on the measured runs that are as theirs."""

import numpy as np

from planner.hardware import load_cluster
from planner.reproductions import get_paper
from planner.reproductions.measured_figures import NEAR_EIGHTY
from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.runs import read_runs


def share_of_memory(run) -> float:
    """Of the first stage under 1F1B, as public code quotes arXiv 2411.06465: state, and activations per tensor rank."""
    h, f, a, v, s, layers = (run[c] for c in ("hidden", "ffn", "heads", "vocab", "seq_len", "layers"))
    t, p, d, b = (run[c] or 1 for c in ("tp", "pp", "dp", "micro_batch"))
    k = (run["kv_heads"] or a) / a
    parameters = h * v / t * (2 if p == 1 else 1) + 2 * layers / p * h * h * ((1 + k + 1.5 * f / h) / t + 1 / h)
    activations = s * b * h / t * ((12 + 4 * k + 8 * f / h) * layers + 8 * p + 4 * (1 + v / h))
    state = 18 if run["zero"] == 0 else 6 + 12 / d
    return (state * parameters + activations) / load_cluster(run["cluster"]).accelerator.memory_bytes


def test_its_own_formulas_take_sequence_parallelism_for_granted():
    having = get_paper("fujii-2024").claims[0].arguments["having"]
    runs = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    runs = [run for run in runs if all(run[column] in cells for column, cells in having.items())]
    below = np.array([share_of_memory(run) < NEAR_EIGHTY for run in runs])
    failed = np.array([run["outcome"] == "oom" for run in runs])
    without = np.array([run["sequence_parallel"] is False for run in runs])
    why = get_paper("fujii-2024").claims[1].why
    out, known = (below & failed).sum(), (below & ~without).sum()
    assert f"on the {len(runs)} runs of the row above, {out} of {below.sum()} below 80 % run out" in why
    assert f"the {out} ran without sequence parallelism; of {known} with it, or that do not say, none does" in why
    assert out > 0
    assert known > 0
    assert not (below & failed & ~without).any()
