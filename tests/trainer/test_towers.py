"""A tower before a language model, each with its own layout: gradients of plain training's, bytes by a formula."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError, LayoutError
from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.serial import run_serial
from planner.trainer.stage import Stage
from planner.trainer.towers import KIND, check_tower
from tests.trainer import mpi_towers
from tests.trainer.helpers import SEQUENCES, gpt, llama
from tests.trainer.mpi_towers import (
    CASES,
    IMAGE,
    MODEL,
    SMALL,
    TOWER,
    TURNED,
    outcome,
    task_of,
    tower_of,
    worker_of,
    worst_of,
)
from tests.trainer.mpirun import mpirun, needs_mpi
from tests.trainer.test_parallel import PIPELINES

MODELS = {
    "llama": MODEL,
    "gpt, tied": gpt(8),
    "windows": replace(llama(8), window=3, num_window_layers=4),
    "multi-token": replace(llama(8), num_mtp_layers=1),
    "experts": replace(llama(8), num_experts=4, top_k=2, moe_ffn=12, num_dense_layers=2),
}
TOWERS = {"tower": TOWER, "causal": TURNED, "two images": SMALL}
WAYS = [
    {}, {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"tp": 4}, {"cp": 2}, {"cp": 2, "ulysses": 2}, {"dp": 2},
    {"dp": 2, "zero": 1}, {"dp": 2, "tp": 2, "zero": 2}, {"dp": 4, "zero": 3}, {"dp": 2, "cp": 2, "zero": 3},
]  # fmt: skip


@cache
def plain(model: str = "llama", tower: str = "tower"):
    return mpi_towers.plain(MODELS[model], TOWERS[tower])


def ranks_of(task, tower, program=outcome, **more):
    return run_serial(np, task.num_ranks, lambda c: program(c, task, tower, **more))


def assert_plain(task, tower, model="llama", of="tower", **how):
    expected = plain(model, of)
    found = ranks_of(task, tower, **how)
    assert {name for _, gradients in found for name in gradients} == set(expected[1])
    assert max(worst_of(one, expected) for one in found) <= 1e-10


@pytest.mark.parametrize(("name", "pipe"), PIPELINES, ids=lambda x: x if isinstance(x, str) else f"p{x.p}m{x.m}")
def test_every_synchronous_schedule(name, pipe):
    assert_plain(task_of(name, pipe, tp=2), tower_of(2, dp=2 * pipe.p))


@settings(max_examples=80, deadline=None)
@given(drawn=st.data())
def test_drawn_layouts_of_both(drawn):
    def one(*values):
        return drawn.draw(st.sampled_from(values))

    name, pipe = one(*PIPELINES)
    allowed = ["llama", "windows"] + ["gpt, tied"] * (pipe.p > 1)
    allowed += ["multi-token"] * (not SCHEDULES[name].barriers) + ["experts"] * (pipe.k == 1)
    model, of = one(*allowed), one(*TOWERS)
    way = one(*(w for w in WAYS if "cp" not in w or pipe.k == 1))
    if model == "experts" and way.get("tp", 1) > 1:
        way = {"tp": 2, "sequence_parallel": True, "ep": 2}
    if MODELS[model].num_kv_heads // way.get("tp", 1) % way.get("ulysses", 1) or way.get("tp") == 4:
        model = "gpt, tied"
    if SEQUENCES % (way.get("dp", 1) * pipe.m) or (SCHEDULES[name].barriers and 24 % (way.get("tp", 1) * pipe.p)):
        way = {"tp": 2}
    again = one(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    task = task_of(name, pipe, MODELS[model], recompute=again, **way)
    tp = one(*(t for t in (1, 2, 4) if task.num_ranks % t == 0))
    tower = tower_of(
        one(*(m for m in (1, 2, 4) if SEQUENCES % (task.num_ranks // tp * m) == 0)), TOWERS[of], tp=tp,
        dp=task.num_ranks // tp, zero=one(0, 1, 2, 3), sequence_parallel=one(False, TOWERS[of].seq_len % tp == 0),
        recompute=one(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
    )  # fmt: skip
    assert_plain(task, tower, model, of, keeps=one(False, True))


@needs_mpi
@pytest.mark.parametrize("num_ranks", CASES)
def test_gradients_under_mpi(num_ranks):
    done = mpirun(num_ranks, ["-m", "tests.trainer.mpi_towers"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES[num_ranks])} towers agree" in done.stdout


def traffic(communicator, task, tower, **how):
    worker, batch = worker_of(communicator, task, tower, **how)
    worker.gradients(batch)
    return communicator.traffic.of(KIND)


def box(task, rank, whole):
    """Ranges of sequences and of an image's tokens that a rank has; without a pipeline's later ranks."""
    mesh, split = task.mesh(rank), task.sequence_parallel
    b, s = SEQUENCES // task.dp, task.model.seq_len // (task.tp if split else 1)
    tokens = range(mesh.t * s, (mesh.t + 1) * s) if split else range(IMAGE)
    return (range(mesh.d * b, (mesh.d + 1) * b) if mesh.p == 0 else range(0)), range(
        tokens[0], min(tokens[-1] + 1, IMAGE)
    )


def overlap(a, b):
    return max(min(a.stop, b.stop) - max(a.start, b.start), 0)


BYTES = [
    ({}, {"dp": 4}), ({}, {"dp": 2, "tp": 2}), ({}, {"tp": 4}), ({"tp": 2}, {"dp": 8}), ({"dp": 2}, {"dp": 4, "tp": 2}),
    ({"tp": 4}, {"dp": 4, "tp": 4, "sequence_parallel": True}), ({"tp": 2, "sequence_parallel": True}, {"dp": 8}),
    ({"tp": 2, "sequence_parallel": True}, {"dp": 4, "tp": 2, "sequence_parallel": True}),
]  # fmt: skip


@pytest.mark.parametrize(("way", "of"), BYTES, ids=str)
def test_bytes_of_the_exchange(way, of):
    """Outputs go once to each of a token's tensor ranks, gradients once to each of the tower's; none to where it is."""
    task, tower = task_of("1f1b", Pipeline(p=4, m=4), gpt(8), **way), tower_of(1, **of)
    copies = sum(1 if t.sequence_parallel else t.tp for t in (task, tower))
    stays = 0
    for rank in range(task.num_ranks):
        (rows, columns), (others, further) = box(task, rank, 8), box(tower, rank, IMAGE)
        stays += overlap(rows, others) * overlap(columns, further)
    assert sum(ranks_of(task, tower, traffic)) == (copies * SEQUENCES * IMAGE - 2 * stays) * 16 * 8


def test_bytes_by_hand():
    """A pipeline's first rank has all sequences, a quarter of them its own: the rest come, and their gradients go."""
    task, tower = task_of("1f1b", Pipeline(p=4, m=4)), tower_of(2, dp=4)
    quarter = SEQUENCES // 4 * IMAGE * 16 * 8
    assert ranks_of(task, tower, traffic) == [3 * quarter, quarter, quarter, quarter]
    assert ranks_of(task, tower, traffic, frozen=True) == [0, quarter, quarter, quarter]


@pytest.mark.parametrize("frozen", [False, True])
def test_the_gradients_norm_is_of_all_that_is_trained_and_of_one_step(frozen):
    def norms(communicator, task, tower):
        worker, batch = worker_of(communicator, task, tower, frozen=frozen)
        found = [(worker.gradients(batch), worker.gradient_norm()) for _ in range(2)]
        return found, np.sqrt(sum((g**2).sum() for g in worker.whole().values()))

    [(found, expected)] = ranks_of(task_of("1f1b", Pipeline(p=1, m=1)), tower_of(), norms)
    assert found[0] == found[1]
    assert found[0][1] == pytest.approx(expected, rel=1e-12)
    task, tower = task_of("1f1b", Pipeline(p=2, m=4), dp=2, zero=1), tower_of(2, dp=2, tp=2, zero=1)
    for norm in (rank[0][1][1] for rank in ranks_of(task, tower, norms)):
        assert norm == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("zero", "frozen"), [(0, False), (1, False), (3, False), (1, True)])
def test_a_few_steps_change_both_models_alike(zero, frozen):
    """The norm that gradients are clipped to is of both; a frozen tower is no part of it, and stays."""

    def steps(communicator, task, tower):
        worker, batch = worker_of(communicator, replace(task, clip=0.5), tower, frozen=frozen)
        start = {name: value.copy() for name, value in worker.whole("parameters").items()}
        return [worker.step(batch) for _ in range(3)], start, worker.whole("parameters")

    [(losses, start, expected)] = ranks_of(task_of("1f1b", Pipeline(p=1, m=1)), tower_of(), steps)
    task, tower = task_of("interleaved", Pipeline(p=2, m=4, v=2), dp=2, zero=1), tower_of(2, dp=2, tp=2, zero=zero)
    for found, _, parameters in ranks_of(task, tower, steps):
        assert found == pytest.approx(losses, rel=1e-10)
        for name, value in parameters.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)
    moved = {name for name, value in expected.items() if not np.array_equal(value, start[name])}
    assert moved == {name for name in expected if not (frozen and name.startswith("tower."))}


def test_every_token_of_an_image_changes_all_of_its_outputs():
    """No mask: a step's gradients change alike whichever patch of a tower without positions is the last."""
    blind = replace(TOWER, max_positions=0)

    def of(order):
        def program(communicator, task, tower):
            worker, batch = worker_of(communicator, task, tower)
            return worker.tower.executor, worker._forward(replace(batch, patches=batch.patches[..., order]), 0)[0]

        return ranks_of(task_of("1f1b", Pipeline(p=1, m=1)), tower_of(1, blind), program)[0][1]

    np.testing.assert_allclose(of([3, 1, 0, 2]), of([0, 1, 2, 3])[:, [3, 1, 0, 2]], rtol=1e-10)


def test_a_tower_goes_forward_twice_unless_it_is_frozen_or_keeps_what_it_needs(monkeypatch):
    task, tower, seen = task_of("1f1b", Pipeline(p=1, m=4)), tower_of(2), []
    plainly = Stage.forward
    monkeypatch.setattr(Stage, "forward", lambda self, *rest: seen.append(len(self.layers)) or plainly(self, *rest))
    ranks_of(task, tower)
    assert seen == [6] * 2 + [10] * 4 + [6] * 2
    seen.clear()
    ranks_of(task, tower, keeps=True)
    assert seen == [6] * 2 + [10] * 4
    seen.clear()
    ranks_of(task, tower, frozen=True)
    assert seen == [6] * 2 + [10] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp": 1}, r"tower's dp \* tp is 1; allowed: all 2 ranks"),
        ({"cp": 2}, "tower's cp is 2; allowed: 1"),
        ({"rows": task_of("1f1b", Pipeline(p=2, m=2)).rows, "dp": 1}, "tower's pp is 2; allowed: 1"),
        ({"offload_layers": 1}, "tower's offload_layers is 1; allowed: 0"),
        ({"dtype": np.float32}, "tower's dtype is float32; allowed: the language model's, of 32 or 64 bits"),
        ({"output_width": 8}, "tower's output_width is 8; allowed: the language model's hidden 16"),
        ({"model": replace(TOWER, num_mtp_layers=1)}, "has experts, windows or multi-token prediction; allowed: none"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises((InputError, LayoutError), match=message):
        check_tower(task_of("1f1b", Pipeline(p=2, m=4)), replace(tower_of(2, dp=2), **changes))


@pytest.mark.parametrize(
    "change", [lambda p: p[:, 1:], lambda p: p[:1], lambda p: np.hstack([p, p[:, :4]]), lambda p: np.hstack([p] * 3)]
)
def test_patches_of_another_number_are_refused(change):
    def program(communicator, task, tower):
        worker, batch = worker_of(communicator, task, tower)
        return worker.gradients(replace(batch, patches=change(batch.patches)))

    with pytest.raises(
        LayoutError, match=r"patches are of shape \(.*, 4\); allowed: \(2, b, 4\) with as many images for each of 16"
    ):
        ranks_of(task_of("1f1b", Pipeline(p=1, m=2)), tower_of(2), program)
