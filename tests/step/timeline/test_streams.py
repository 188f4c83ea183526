"""Links: nothing on them changes nothing; what is on them queues, and is shared; compute beside them slows down."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError, LayoutError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.schedules import Order, Pipeline, get_schedule
from planner.schedules.dependencies import dependencies
from planner.setup import Setup
from planner.step.timeline.step_streams import simulate_streams
from planner.step.timeline.streams import Collectives, run_streams
from planner.step.timeline.timeline import durations, run
from tests.schedules.cases import named_pipelines


def collectives(p: int, gather: float = 0.0, reduce: float = 0.0, overlap: float = 0.0) -> Collectives:
    return Collectives(
        gather_s=np.full(p, gather), reduce_s=np.full(p, reduce), gather_overlap=overlap, reduce_overlap=overlap,
        on_network=True,
    )  # fmt: skip


def lasting(order: Order, pipe: Pipeline, seed: int) -> np.ndarray:
    f, i, w = np.random.default_rng(seed).uniform(0.5, 2.0, size=(3, int(order.stage.max()) + 1))
    return durations(order, f, i, w)


@settings(max_examples=60, deadline=None)
@given(named_pipelines(["1f1b", "interleaved", "zb-h1", "seq1f1b", "breadth-first"]), st.integers(0, 99))
def test_idle_links_change_nothing_and_short_transfers_are_delays(case, seed):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    seconds = lasting(order, pipe, seed)
    n = len(order)
    for transfer in (0.0, 0.3):
        # Shorter than any operation, transfers of one rank never queue, but for its forward meeting its backward.
        streams = run_streams(order, seconds, transfer, True, collectives(pipe.p))
        plain = run(order, seconds, transfer)
        assert streams.end_s[:n] == pytest.approx(plain.end_s, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(named_pipelines(["1f1b", "interleaved", "zb-h1", "breadth-first"]), st.integers(0, 99), st.floats(0.01, 1.0))
def test_slower_beside_busy_links_but_never_by_more_than_stated(case, seed, slow_down):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    seconds = lasting(order, pipe, seed)
    busy = collectives(pipe.p, 1.0, 2.0, 0.5)
    fast = run_streams(order, seconds, 0.4, True, busy)
    slow = run_streams(order, seconds, 0.4, True, busy, slow_down)
    assert fast.makespan_s - 1e-9 <= slow.makespan_s <= fast.makespan_s * (1.0 + slow_down) + 1e-9
    assert np.all(slow.busy_s(0) >= fast.busy_s(0) - 1e-9)
    assert slow.busy_s(2) == pytest.approx(fast.busy_s(2), rel=1e-9)


def test_transfers_queue_behind_one_another():
    order = Order.of_rows(get_schedule("gpipe").order(Pipeline(p=2, m=3)).rows())
    streams = run_streams(order, durations(order, 1.0, 1.0, 1.0), 3.0, True, collectives(2))
    sends = [i for i in range(len(order), len(streams.start_s)) if streams.rank[i] == 0]
    assert streams.name[sends].tolist() == ["send"] * 3
    assert streams.start_s[sends].tolist() == [1.0, 4.0, 7.0]
    # The last forward of rank 1 waits for the third transfer.
    assert streams.start_s[order.start[1] + 2] == 10.0


def test_collectives_wait_for_their_chunk_and_for_one_another():
    order = get_schedule("breadth-first").order(Pipeline(p=2, m=2, v=2))
    streams = run_streams(order, durations(order, 1.0, 1.0, 1.0), 0.0, True, collectives(2, 4.0, 4.0))
    gathers = [i for i in range(len(streams.name)) if streams.name[i] == "gather" and streams.rank[i] == 0]
    assert streams.start_s[gathers].tolist() == [0.0, 2.0]
    # Chunk 0 starts when it is gathered. What rank 0 sends at 3 goes beside its second gather, so rank 1 answers at 4.
    assert streams.start_s[:3].tolist() == [2.0, 3.0, 4.0]
    reductions = [i for i in range(len(streams.name)) if streams.name[i] == "reduce" and streams.rank[i] == 0]
    last = [streams.end_s[streams.cause[i]] for i in reductions]
    assert streams.start_s[reductions[0]] == last[0]
    assert streams.start_s[reductions[1]] == max(last[1], streams.end_s[reductions[0]])
    half = run_streams(order, durations(order, 1.0, 1.0, 1.0), 0.0, True, collectives(2, 0.0, 4.0, 0.5))
    again = [i for i in range(len(half.name)) if half.name[i] == "reduce" and half.rank[i] == 0]
    assert half.start_s[again[0]] == half.end_s[half.cause[again[0]]] - 1.0


def test_a_transfer_and_a_collective_have_half_of_the_link_each():
    """Rank 0 gathers two chunks, 2 s each, and sends for 1 s from 3 on: the send lasts 2 s, to 5.

    The second gather has half the link from 3 on and does half of its work by 4, one and a half by 5; it ends at 5.
    Rank 0's second transfer would begin then, alone.
    """
    order = get_schedule("breadth-first").order(Pipeline(p=2, m=2, v=2))
    streams = run_streams(order, durations(order, 1.0, 1.0, 1.0), 1.0, True, collectives(2, 4.0))
    of_rank_0 = np.flatnonzero((streams.rank == 0) & (streams.lane == 2))
    by = {name: of_rank_0[streams.name[of_rank_0] == name] for name in ("gather", "send")}
    assert streams.end_s[by["gather"]] == pytest.approx([2.0, 5.0])
    assert streams.start_s[by["send"][:2]] == pytest.approx([3.0, 5.0])
    assert streams.end_s[by["send"][:2]] == pytest.approx([5.0, 6.0])
    assert streams.busy_s(2)[0] == pytest.approx(4.0 + len(by["send"]))


def shared(order: Order, seconds: np.ndarray, transfer: float, c: Collectives) -> dict[tuple, float]:
    """Every operation's end, told anew: time goes from one end to the next, and what shares a link has half of it."""
    waits, rank = dependencies(order), order.rank.tolist()
    left: dict[tuple, float] = {("compute", i): float(seconds[i]) for i in range(len(order))}
    before: dict[tuple, list[tuple]] = {op: [] for op in left}
    queues: dict[tuple, list] = {(r, k): [] for r in range(order.ranks) for k in ("compute", "send", "collective")}
    of_chunk: dict[tuple, list[int]] = {}
    for i in range(len(order)):
        queues[rank[i], "compute"].append((i, ("compute", i)))
        of_chunk.setdefault((rank[i], int(order.stage[i])), []).append(i)
        for column, j in enumerate(waits[i].tolist()):
            send = ("send", j, i, column)
            if j >= 0 and rank[j] != rank[i]:
                left[send], before[send] = transfer, [("compute", j)]
                queues[rank[j], "send"].append(((j, i, column), send))
            if j >= 0:
                before["compute", i].append(send if rank[j] != rank[i] else ("compute", j))
    for r in range(order.ranks):
        chunks = [ops for (owner, _), ops in of_chunk.items() if owner == r]
        first = sorted(min(i for i in ops if order.kind[i] == 0) for ops in chunks)
        for at, i in zip([-1, *first], first, strict=False):
            left["gather", i], before["gather", i] = float(c.gather_s[r]) / len(chunks), []
            before["compute", i].append(("gather", i))
            queues[r, "collective"].append((at - 0.5, ("gather", i)))
        for ops in chunks:
            i = max(i for i in ops if order.kind[i] in (1, 3))
            left["reduce", i], before["reduce", i] = float(c.reduce_s[r]) / len(chunks), [("compute", i)]
            queues[r, "collective"].append((i + 0.5, ("reduce", i)))
    lines = {at: [op for _, op in sorted(queue)] for at, queue in queues.items()}
    now, done = 0.0, {}
    while any(lines.values()):
        going = {at: line[0] for at, line in lines.items() if line and all(b in done for b in before[line[0]])}
        rate = {
            at: 0.5 if k != "compute" and {(r, "send"), (r, "collective")} <= going.keys() else 1.0
            for at in going
            for r, k in [at]
        }
        step = min(left[op] / rate[at] for at, op in going.items())
        now += step
        for at, op in going.items():
            left[op] -= step * rate[at]
            if left[op] <= 1e-12:
                done[op] = now
                lines[at].pop(0)
    return done


@settings(max_examples=40, deadline=None)
@given(
    named_pipelines(["1f1b", "interleaved", "zb-h1", "breadth-first"]), st.integers(0, 99), st.floats(0.1, 3.0),
    st.floats(0.1, 9.0), st.floats(0.1, 9.0),
)  # fmt: skip
def test_links_are_shared_as_a_simulation_of_their_flows_says(case, seed, transfer, gather, reduce):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    seconds = lasting(order, pipe, seed)
    c = collectives(pipe.p, gather, reduce)
    told = shared(order, seconds, transfer, c)
    streams = run_streams(order, seconds, transfer, True, c)
    n = len(order)
    within = 1e-8 * streams.makespan_s
    assert streams.end_s[:n] == pytest.approx([told["compute", i] for i in range(n)], abs=within)
    for kind in ("gather", "reduce"):
        at = np.flatnonzero(streams.name == kind)
        assert streams.end_s[at] == pytest.approx([told[kind, int(streams.cause[i])] for i in at], abs=within)


def test_a_pass_hides_its_part_of_a_gather():
    """Of a gather of 4 s a quarter hides behind the pass that needs it, which starts 1 s before its end."""
    order = get_schedule("gpipe").order(Pipeline(p=1, m=2))
    streams = run_streams(order, durations(order, 1.0, 1.0, 1.0), 0.0, True, collectives(1, 4.0, 0.0, 0.25))
    assert streams.start_s[0] == 3.0
    assert streams.busy_s(2).tolist() == [4.0]


def test_passes_that_take_no_time_are_no_deadlock():
    order = get_schedule("1f1b").order(Pipeline(p=2, m=2))
    assert run_streams(order, durations(order, 0.0, 0.0, 0.0), 0.0, True, collectives(2)).makespan_s == 0.0


@pytest.mark.parametrize(("dp", "lane"), [(4, 1), (16, 2)])
def test_gradients_of_replicas_on_several_nodes_go_over_the_network(dp, lane):
    """Eight GPUs a node: four replicas of two stages share one, sixteen lie on four."""
    cluster = load_cluster("dgx-a100-80gb")
    setup = Setup(load_model("gpt2-xl"), cluster, load_framework(cluster.framework))
    step = simulate_streams(setup, Layouts.of(pp=2, dp=dp, zero=1, global_batch=4 * dp))
    kinds = {name: set(step.streams.lane[step.streams.name == name].tolist()) for name in ("gather", "reduce")}
    assert kinds == {"gather": {lane}, "reduce": {lane}}


def test_a_step_with_links():
    model, cluster = load_model("llama-13b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    layouts = Layouts.of(tp=2, pp=4, dp=4, global_batch=64)
    free, slow = (simulate_streams(Setup(model, cluster, framework), layouts, s) for s in (0.0, 0.2))
    assert free.step_time_s == pytest.approx(free.plain.step_time_s, rel=0.1)
    assert free.step_time_s < slow.step_time_s < 1.2 * free.step_time_s
    thin = load_cluster("dgx-a100-80gb", network="ethernet-10g")
    assert simulate_streams(Setup(model, thin, framework), layouts).step_time_s > free.step_time_s
    with pytest.raises(InputError, match=r"slow_down is -1\.0; allowed: a number from 0"):
        simulate_streams(Setup(model, cluster, framework), layouts, -1.0)
    with pytest.raises(LayoutError, match="never drained"):
        simulate_streams(
            Setup(model, cluster, framework), Layouts.of(schedule="2bw", tp=2, pp=4, dp=4, global_batch=64)
        )


@pytest.mark.parametrize("name", ["zb-2p", "zb-v"])
def test_ranks_that_end_apart_update_apart(name):
    """Without a common end the step is the longest of any rank's own, from its first operation to its update."""
    cluster = load_cluster("dgx-h100")
    setup = Setup(load_model("llama-13b"), cluster, load_framework(cluster.framework))
    virtual = 2 if name == "zb-v" else 1
    layouts = Layouts.of(tp=2, pp=4, dp=1, global_batch=16, schedule=name, virtual_stages=virtual)
    step = simulate_streams(setup, layouts)
    plain, order = step.plain, step.streams.order
    begin = step.streams.start_s[order.start[:-1]]
    own = step.update_start_s + (plain.update_end_s - plain.update_start_s) - begin
    assert np.ptp(step.update_start_s) > 0.0
    assert step.step_time_s == pytest.approx(own.max(), rel=1e-12)
    assert step.step_time_s < (own + begin).max()
    assert step.step_time_s == pytest.approx(plain.step_time_s, rel=0.02)


def test_compute_beside_a_transfer_by_hand():
    """Two ranks, two micro-batches, F 1 s, B 2 s, transfers 0.6 s, half as slow again beside them.

    Rank 0's second forward has the first one's transfer beside it for 0.6 s, in which it does 0.4 s of its work: it
    ends at 2.2. Its own transfer ends at 2.8, after the first of rank 1's forwards, 1.6 to 2.6.
    """
    order = get_schedule("gpipe").order(Pipeline(p=2, m=2))
    streams = run_streams(order, durations(order, 1.0, 1.0, 1.0), 0.6, True, collectives(2), 0.5)
    of_rank_1 = int(order.start[1])
    assert streams.end_s[:2] == pytest.approx([1.0, 2.2])
    assert streams.start_s[of_rank_1 : of_rank_1 + 2] == pytest.approx([1.6, 2.8])
    assert streams.end_s[of_rank_1] == pytest.approx(2.6)
    assert streams.busy_s(2) == pytest.approx([1.2, 1.2])
    assert streams.busy_s(1).tolist() == [0.0, 0.0]
    assert streams.busy_s(0)[0] == pytest.approx(2.2 + 4.0)
    assert streams.makespan_s == streams.end_s.max()
    inside = run_streams(order, durations(order, 1.0, 1.0, 1.0), 0.6, False, collectives(2), 0.5)
    assert inside.busy_s(1) == pytest.approx([1.2, 1.2])
    assert inside.busy_s(2).tolist() == [0.0, 0.0]
