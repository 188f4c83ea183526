"""Legal pipelines of every schedule, small enough to run by the hundred."""

from hypothesis import strategies as st

from planner.schedules import SCHEDULES, Pipeline, get_schedule


def legal(name: str, pipe: Pipeline) -> bool:
    return not any(rule.broken for rule in get_schedule(name).rules(pipe))


def pipelines(name: str) -> st.SearchStrategy[Pipeline]:
    """Pipelines that the schedule allows."""
    schedule = get_schedule(name)
    chunks = st.integers(2, 4) if schedule.chunks is None else st.just(schedule.chunks)
    slices = st.integers(2, 4) if schedule.sliced else st.just(1)
    sizes = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(0, 7), chunks, slices)
    # Micro-batches in multiples of p and beside them: rules decide which stay.
    made = sizes.map(lambda x: Pipeline(p=x[0], m=max(x[0] * x[1] + (x[2] if x[2] > 3 else 0), 1), v=x[3], k=x[4]))
    return made.filter(lambda pipe: legal(name, pipe))


def named_pipelines(names: list[str] | None = None) -> st.SearchStrategy[tuple[str, Pipeline]]:
    """(name, legal pipeline) over schedules."""
    return st.sampled_from(sorted(names or SCHEDULES)).flatmap(lambda n: st.tuples(st.just(n), pipelines(n)))
