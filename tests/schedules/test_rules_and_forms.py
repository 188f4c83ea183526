"""Every schedule's rules are broken where they should be, and closed forms by hand."""

import numpy as np
import pytest

from planner.schedules import SCHEDULES, Loads, Operation, Order, Pipeline, get_schedule, usual_schedule
from planner.schedules.dependencies import dependencies
from planner.step.timeline.timeline import durations, run


def broken(name: str, **size: object) -> dict[str, list[bool]]:
    rules = get_schedule(name).rules(Pipeline(**{k: np.asarray(v) for k, v in size.items()}))
    return {rule.text: np.broadcast_to(rule.broken, 3).tolist() for rule in rules}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_chunks_and_slices_that_a_schedule_takes(name):
    schedule = SCHEDULES[name]
    slices = 2 if schedule.sliced else 1
    chunks = broken(name, p=4, m=8, v=[1, 2, 3], k=slices)
    text = next(t for t in chunks if "virtual stage" in t)
    right = {None: [True, False, False], 1: [False, True, True], 2: [True, False, True]}
    if schedule.chunks in right:
        assert chunks[text] == right[schedule.chunks]
    sliced = broken(name, p=4, m=8, v=schedule.chunks or 2, k=[1, 2, 3])
    text = next(t for t in sliced if "slice" in t)
    assert sliced[text] == ([True, False, False] if schedule.sliced else [False, True, True])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_bubble_s_share_of_a_step(name):
    """Without seconds all three passes take one."""
    schedule = SCHEDULES[name]
    pipe = Pipeline(p=4, m=8, v=schedule.chunks or 2, k=2 if schedule.sliced else 1)
    idle = float(schedule.bubble_s(pipe, 1.0, 1.0, 1.0))
    assert float(schedule.bubble_fraction(pipe)) == pytest.approx(idle / (8 * 3 + idle))
    idle = float(schedule.bubble_s(pipe, 1.0, 2.0, 3.0))
    assert float(schedule.bubble_fraction(pipe, 1.0, 2.0, 3.0)) == pytest.approx(idle / (8 * 6 + idle))


def test_1f1b_with_a_slow_middle_rank():
    """Ranks of 2, 2 and 1.8 s, 3 micro-batches: one forward on the first rank, three passes of the second, and what
    the last rank's 1.8 s exceed the 1 s that the second fills them with, at either end: 2 + 6 + 0.8 + 0.8."""
    forward, backward = np.array([1.0, 1.0, 0.9]), np.array([1.0, 1.0, 0.9])
    schedule, pipe = get_schedule("1f1b"), Pipeline(p=3, m=3, v=1, k=1)
    rank = [tuple(np.array([x]) for x in (f, b / 2, b / 2)) for f, b in zip(forward, backward, strict=True)]
    loads = Loads(first=rank[0], early=rank[1], num_early=np.array([1.0]), late=rank[1], last=rank[2])
    closed = float(np.ravel(schedule.makespan(pipe, loads))[0])
    order = schedule.order(pipe)
    assert closed == pytest.approx(9.6)
    assert run(order, durations(order, forward, backward / 2, backward / 2), 0.0).makespan_s == pytest.approx(9.6)


def test_an_order_of_no_operations():
    assert len(Order.of_tables([])) == 0
    assert Order.of_tables([]).rows() == []


ALL = [1, 2, 3, 4, 5, 6, 7, 8]
# Ranks that a schedule takes with 48 micro-batches, and micro-batches from 1 to 12 with 4 ranks, as its paper asks.
SIZES = {
    "2bw": (ALL, range(4, 13)),  # fewer than p would need a third version of the weights
    "bitpipe": ([2, 4, 6, 8], [4, 8, 12]),  # two directions of p / 2 each
    "chimera": ([2, 4, 6, 8], [4, 8, 12]),
    "breadth-first": (ALL[1:], range(1, 13)),
    "chronospipe": (ALL[1:], range(1, 13)),
    "modular": (ALL[1:], range(1, 13)),
    "dualpipe": ([2, 4, 6, 8], [8, 10, 12]),  # both ends feed at least p each
    "dualpipev": (ALL, range(8, 13)),
    "interleaved": ([2, 3, 4, 6, 8], [4, 8, 12]),  # Narayanan et al. 2021: a multiple of p
    "seq1f1b-interleaved": ([2, 4, 6, 8], [4, 8, 12]),  # and p one of the slices
    "layered": ([1], []),
    "zb-h1": (ALL, range(4, 13)),  # Qi et al. 2023: p, or 2 p - 1 for no bubble
    "zb-h2": (ALL, range(7, 13)),
    "seq1f1b-zb": (ALL, range(3, 13)),  # p - 1 + k slices
    "zb-v": (ALL, range(7, 13)),
    "vocab-1": (ALL[1:], range(1, 13)),
    "vocab-2": (ALL[1:], range(1, 13)),
    "interlaced": (ALL[1:], range(1, 13)),
    "v-half-vocab-1": (ALL[1:], range(1, 13)),
    "v-half-vocab-2": (ALL[1:], range(1, 13)),
}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_sizes_that_a_schedule_takes(name):
    schedule = SCHEDULES[name]
    v, k = schedule.chunks or 2, 2 if schedule.sliced else 1

    def legal(p: int, m: int) -> bool:
        return not any(np.any(rule.broken) for rule in schedule.rules(Pipeline(p=p, m=m, v=v, k=k)))

    ranks, micro_batches = SIZES.get(name, (ALL, range(1, 13)))
    assert [p for p in ALL if legal(p, 48)] == list(ranks)
    assert [m for m in range(1, 13) if legal(4, m)] == list(micro_batches)


def test_what_each_operation_waits_for():
    """Two stages on two ranks, three slices: the neighbouring stage, the stage itself, the neighbouring slice."""
    rows = [
        [Operation.parse(cell) for cell in line.split()]
        for line in ("0F0 0F0.1 0F0.2 0B0.2 0B0.1 0B0", "1F0 1F0.1 1F0.2 1I0.2 1I0.1 1I0 1W0.2 1W0.1 1W0")
    ]
    waits = dependencies(Order.of_rows(rows)).tolist()
    none = -1
    assert waits[:6] == [
        [none, none, none], [none, none, 0], [none, none, 1], [9, 2, none], [10, 1, 3], [11, 0, 4],
    ]  # fmt: skip
    assert waits[6:] == [
        [0, none, none], [1, none, 6], [2, none, 7], [none, 8, none], [none, 7, 9], [none, 6, 10],
        [none, 9, none], [none, 10, none], [none, 11, none],
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_nothing_lives_on_to_the_weight_gradient_unless_it_is_said(name):
    schedule = SCHEDULES[name]
    pipe = Pipeline(p=1 if name == "layered" else 4, m=8, v=schedule.chunks or 2, k=2 if schedule.sliced else 1)
    for rank in range(pipe.p):
        assert float(schedule.in_flight(pipe, rank)) == float(schedule.in_flight(pipe, rank, 0.0))
        assert float(schedule.in_flight(pipe, rank)) <= float(schedule.in_flight(pipe, rank, 1.0))


@pytest.mark.parametrize("name", ["pipedream", "2bw", "xpipe", "spectrain"])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 2), (4, 4), (4, 7), (5, 1)])
def test_how_old_weights_are_is_counted_in_the_order(name, p, m):
    """An update needs the backward passes of all its micro-batches; a forward misses those that are not through."""
    schedule, pipe = get_schedule(name), Pipeline(p=p, m=m)
    update = 1 if name in ("pipedream", "spectrain") else m  # micro-batches of one
    for rank, row in enumerate(schedule.steps_order(pipe, 12).rows()):
        through, most, held = 0, 0, 0
        for operation in row:
            i = operation.micro_batch
            if operation.kind == "B":
                through, held = through + 1, held - 1
                continue
            held += 1
            most = max(most, held)
            missed = i // update - through // update
            behind = int(schedule.updates_behind(pipe, rank, i))
            if name == "2bw":
                # Everyone waits for the update before the last, also who could have the last one.
                assert behind == min(i // m, 1)
                assert missed <= behind or m < p
            else:
                assert behind == missed
        assert float(schedule.in_flight(pipe, rank)) == most
        versions = {"pipedream": most}.get(name, 2)
        assert float(schedule.weight_versions(pipe, rank)) == versions
    assert float(schedule.bubble_s(pipe, 1.0, 2.0, 3.0)) == 0.0
    loads = Loads(**{k: tuple(np.array([x]) for x in v) for k, v in LOADS.items()}, num_early=np.array([1.0]))
    assert float(np.ravel(schedule.makespan(Pipeline(p=3, m=m), loads))[0]) == m * 9.0


LOADS = {"first": (1.0, 1.0, 1.0), "early": (2.0, 3.0, 4.0), "late": (1.0, 3.0, 2.0), "last": (2.0, 2.0, 2.0)}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_rule_has_a_sentence_of_its_own(name):
    """A layout that breaks it is refused with that."""
    texts = [rule.text for rule in get_schedule(name).rules(Pipeline(p=2, m=2, v=2, k=2))]
    assert all(isinstance(text, str) and name in text for text in texts), texts
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("v", [1, 2])
def test_the_schedule_of_a_layout_that_names_none_takes_its_stages_and_slices(v, k):
    name = usual_schedule(v, k)
    assert name == {(1, 1): "1f1b", (2, 1): "interleaved", (1, 2): "seq1f1b", (2, 2): "seq1f1b-interleaved"}[v, k]
    assert not any(any(np.ravel(rule)) for rule in broken(name, p=2, m=4, v=v, k=k).values())
