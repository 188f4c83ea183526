"""Asynchronous schedules follow their staleness exactly: against a plain trainer that keeps every version."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.asynchronous import STALENESS, run_asynchronously
from planner.trainer.executor import Batch, Hooks
from planner.trainer.optimizers import SGD, Adam
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import data, gpt, llama, loud, plain_rows

MODEL = llama(4)
STEPS, M = 3, 4
OPTIMIZERS = {"sgd": lambda: SGD(learning_rate=0.2, momentum=0.9), "adam": lambda: Adam(learning_rate=0.01)}


def micro_batches(num: int, dp: int, d: int, per_update: int) -> Batch:
    tokens = np.resize(data(MODEL), (num, dp, 1, MODEL.seq_len + 1))[:, d]
    weight = per_update * dp * MODEL.seq_len
    return Batch(tokens=tokens[..., :-1], targets=tokens[..., 1:], num_tokens=weight)


class Swap(Hooks):
    """Forwards on one set of weights, backwards on another."""

    def __init__(self, worker: Worker, forward: dict, backward: dict) -> None:
        self.worker, self.forward, self.backward = worker, forward, backward

    def before(self, here) -> None:
        self.worker.store.use(self.forward if here.kind == "F" else self.backward)


def stale_training(name: str, p: int, optimizer: str) -> tuple[dict, list[float]]:
    """Every gradient at the version that the schedule states for each rank's layers; no pipeline."""
    schedule, rule, pipe = SCHEDULES[name], STALENESS[name], Pipeline(p=p, m=M)
    u = M if rule.mini_batch else 1
    batch = micro_batches(STEPS * M, 1, 0, u)

    def program(communicator):
        task = Task(model=MODEL, rows=plain_rows(u), micro_batches=u, dtype=np.float64)
        worker = loud(Worker(communicator, task, OPTIMIZERS[optimizer]()))
        rank = {n: rank_of_unit(n, p) for n in worker.store.units}
        history = [{n: w.copy() for n, w in worker.store.versions.items()}]
        directions = [dict.fromkeys(rank, 0.0)]
        losses = []
        for n in range(STEPS * M // u):
            mixed = {}
            for name_, r in rank.items():
                behind = int(schedule.updates_behind(pipe, r, n * u))
                mixed[name_] = history[n - behind][name_].copy()
                if rule.predicted:
                    mixed[name_] -= behind * worker.optimizer.learning_rate * directions[n - behind][name_]
            newest = history[n] if rule.backward_newest else mixed
            mine = slice(n * u, (n + 1) * u)
            part = replace(batch, tokens=batch.tokens[mine], targets=batch.targets[mine])
            worker.store.clear_gradients()
            losses.append(sum(worker.executor.run(part, Swap(worker, mixed, newest)).values()))
            newest = {k: v.copy() for k, v in history[-1].items()}
            worker.store.use(newest)
            worker.apply(n + 1)
            history.append(newest)
            directions.append({k: np.copy(worker.optimizer.direction(np, k, n + 1)) for k in rank})
        return worker.whole("parameters"), losses

    return run_serial(np, 1, program)[0]


def rank_of_unit(name: str, p: int) -> int:
    if name.startswith("layer"):
        return int(name.removeprefix("layer")) // (MODEL.num_layers // p)
    return 0 if name in ("tokens", "positions") else p - 1


def asynchronous(name: str, p: int, optimizer: str, **choices) -> tuple[dict, list[float], list[int]]:
    schedule, rule, pipe = SCHEDULES[name], STALENESS[name], Pipeline(p=p, m=M)
    rows = schedule.steps_order(pipe, STEPS).rows()
    task = Task(model=MODEL, rows=rows, micro_batches=M, dtype=np.float64, **choices)

    def program(communicator):
        worker = loud(Worker(communicator, task, OPTIMIZERS[optimizer]()))
        batch = micro_batches(STEPS * M, task.dp, worker.mesh.replica, M if rule.mini_batch else 1)
        losses, versions = run_asynchronously(
            worker, batch, rule, lambda r, i: int(schedule.updates_behind(pipe, r, i))
        )
        return worker.whole("parameters"), losses, versions

    results = run_serial(np, task.num_ranks, program)
    whole = {k: v for parameters, _, _ in results for k, v in parameters.items()}
    return whole, results[0][1], [versions for _, _, versions in results]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("name", ["2bw", "pipedream", "xpipe", "spectrain"])
def test_parameters_are_those_of_the_stated_staleness(name, p, optimizer):
    expected, expected_losses = stale_training(name, p, optimizer)
    found, losses, versions = asynchronous(name, p, optimizer)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-10)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-11, err_msg=key)
    if not STALENESS[name].predicted and p > 1:
        pipe = Pipeline(p=p, m=M)
        assert versions == [int(SCHEDULES[name].weight_versions(pipe, r)) for r in range(p)]


def test_2bw_is_its_papers_formula_by_hand():
    """W(t + 1) = W(t) - lr grad f(W(max(t - 1, 0))), Narayanan et al. 2021, section 3.1."""
    lr, batch = 0.2, micro_batches(STEPS * M, 1, 0, M)

    def program(communicator):
        task = Task(model=MODEL, rows=plain_rows(M), micro_batches=M, dtype=np.float64)
        worker = loud(Worker(communicator, task, SGD(learning_rate=lr)))
        w = [{n: x.copy() for n, x in worker.store.versions.items()}]
        for t in range(STEPS):
            worker.store.use(w[max(t - 1, 0)])
            mine = slice(t * M, (t + 1) * M)
            worker.gradients(replace(batch, tokens=batch.tokens[mine], targets=batch.targets[mine]))
            w.append({n: x - lr * worker.store.owned(n)[1] for n, x in w[t].items()})
        worker.store.use(w[-1])
        return worker.whole("parameters")

    [expected] = run_serial(np, 1, program)
    OPTIMIZERS["plain"] = lambda: SGD(learning_rate=lr)
    found, _, _ = asynchronous("2bw", 2, "plain")
    del OPTIMIZERS["plain"]
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-10, atol=1e-12)


def test_spectrain_with_data_and_tensor_parallelism_runs():
    _, losses, _ = asynchronous("spectrain", 4, "sgd", dp=2, tp=2)
    assert np.isfinite(losses).all()


def test_data_and_tensor_parallel_2bw():
    found, _, _ = asynchronous("2bw", 2, "adam", tp=2)
    alone, _, _ = asynchronous("2bw", 2, "adam")
    for key, value in alone.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-11)


def test_what_ranks_cannot_update_alone_is_refused():
    with pytest.raises(LayoutError, match="needs zero 0, an untied head and no multi-token"):
        asynchronous("2bw", 2, "sgd", dp=2, zero=1)
    assert gpt().tied
