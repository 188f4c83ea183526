"""Legal pipelines of every schedule, small enough to run by the hundred."""

from functools import cache
from itertools import product

from hypothesis import strategies as st

from planner.schedules import SCHEDULES, Pipeline, get_schedule


def legal(name: str, pipe: Pipeline) -> bool:
    return not any(rule.broken for rule in get_schedule(name).rules(pipe))


@cache
def pipelines(name: str) -> st.SearchStrategy[Pipeline]:
    """Pipelines that the schedule allows: micro-batches in multiples of p and beside them, where its rules let them."""
    schedule = get_schedule(name)
    chunks = (2, 3, 4) if schedule.chunks is None else (schedule.chunks,)
    slices = (2, 3, 4) if schedule.sliced else (1,)
    sizes = [(p, m) for p in range(1, 9) for m in sorted({p * x + y for x in range(6) for y in (0, 4, 5, 6, 7)} - {0})]
    made = [Pipeline(p=p, m=m, v=v, k=k) for (p, m), v, k in product(sizes, chunks, slices)]
    return st.sampled_from([pipe for pipe in made if legal(name, pipe)])


def named_pipelines(names: list[str] | None = None) -> st.SearchStrategy[tuple[str, Pipeline]]:
    """(name, legal pipeline) over schedules."""
    return st.sampled_from(sorted(names or SCHEDULES)).flatmap(lambda n: st.tuples(st.just(n), pipelines(n)))
