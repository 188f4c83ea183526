"""The timeline of a pipeline whose stages lie on different machines: each stage as on its own, simulated together."""

from collections.abc import Sequence

import numpy as np

from planner.base.arrays import Array, Ints
from planner.layouts import Layouts
from planner.schedules import Pipeline, get_schedule
from planner.setup import Setup
from planner.step.timeline.step import simulate
from planner.step.timeline.timeline import durations, run


def mixed_step(
    setups: Sequence[Setup], layouts: Sequence[Layouts], group: Ints, extra_forward_s: Array, extra_backward_s: Array
) -> tuple[float, Array]:
    """Seconds of a step, and peak bytes of a GPU of every stage.

    setups, layouts: of each group, the layout as if all stages lay on its machines; both have the same stages, replicas
    and micro-batches. group: whose each stage is, shape (p,). extra_forward_s, extra_backward_s: what a stage's passes
    take longer for a slower link to a stage of another group.

    Raises LayoutError if a layout is illegal.
    """
    alone = [simulate(setup, one) for setup, one in zip(setups, layouts, strict=True)]
    row, stages = layouts[0].row(0), np.arange(len(group))

    def of(values: Sequence[Array]) -> Array:
        return np.asarray(np.stack(values)[group, stages])

    schedule, pipe = get_schedule(row["schedule"]), Pipeline(p=len(group), m=int(layouts[0].micro_batches[0]))
    order = schedule.order(pipe)
    lasting = durations(
        order, of([x.loads.forward_s for x in alone]) + extra_forward_s,
        of([x.loads.input_grad_s for x in alone]) + extra_backward_s, of([x.loads.weight_grad_s for x in alone]),
    )  # fmt: skip
    timeline = run(order, lasting, release_s=of([x.gather_s - x.gather_hidden_s for x in alone]))
    last = order.start[1:] - 1
    hidden = of([x.timeline.end_s[x.timeline.order.start[1:] - 1] - x.reduce_start_s for x in alone])
    reduced = timeline.end_s[last] - hidden + of([x.reduce_s + x.tied_s for x in alone])
    update = of([x.update_end_s - x.update_start_s for x in alone])
    return float((reduced.max() + update).max()), of([x.peak_bytes for x in alone])
