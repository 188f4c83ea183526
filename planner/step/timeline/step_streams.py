"""`simulate_streams`: a layout's step whose transfers and collectives queue on links and slow compute down."""

from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, record
from planner.base.errors import LayoutError
from planner.costs.network.collectives import hop
from planner.costs.network.groups import groups
from planner.hardware import Framework
from planner.layouts import Layouts
from planner.setup import Setup
from planner.step.chunk_gathers import has_chunks
from planner.step.data_comm import beside_passes
from planner.step.layer_time import shown_s
from planner.step.pipelines import layer_at_a_time
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.loads import stage_loads
from planner.step.timeline.step import StepSimulation, simulate
from planner.step.timeline.streams import LANES, Collectives, StreamTimeline, run_streams
from planner.step.timeline.timeline import Timeline, durations


@record
class StreamStep:
    """A step with links: `plain` is the same without, whose memory and loads hold here too.

    update_start_s: when each rank's update may start, shape (p,); step_time_s: from the first operation to the last
    update.
    """

    plain: StepSimulation
    streams: StreamTimeline
    update_start_s: Array
    step_time_s: float

    @property
    def timeline(self) -> Timeline:
        """The compute lanes as a timeline."""
        n = len(self.streams.order)
        return replace(self.plain.timeline, start_s=self.streams.start_s[:n], end_s=self.streams.end_s[:n])

    @property
    def busiest_s(self) -> dict[str, float]:
        """Seconds that each lane is busy on its busiest rank."""
        return {lane: float(self.streams.busy_s(i).max()) for i, lane in enumerate(LANES)}


def simulate_streams(setup: Setup, layouts: Layouts, slow_down: float = 0.0) -> StreamStep:
    """The timeline of one layout with its links.

    A transfer runs beside compute, whatever the framework overlaps: only what waits for it waits. Ranks of one
    pipeline have links of their own; what tensor, context and expert collectives take is part of their passes.

    Raises LayoutError for more than one layout, an illegal one, a pipeline that is never drained, or one whose sharded
    parameters are gathered chunk by chunk; InputError if slow_down is below 0.
    """
    plain = simulate(setup, layouts)
    if plain.schedule.barriers:
        raise LayoutError(f"links are not simulated for {plain.schedule.name}, whose ranks wait for one another")
    if plain.schedule.steady:
        raise LayoutError(f"links are not simulated for {plain.schedule.name}, whose pipeline is never drained")
    costs = step_costs(setup, layouts)
    if has_chunks(costs)[0]:
        raise LayoutError(
            f"links are not simulated for {plain.schedule.name} with zero {layouts.zero[0]}, whose gathers of chunks "
            "are on the timeline without --links too"
        )
    order, k = plain.timeline.order, plain.pipe.k
    bare = replace(costs, send_s=np.zeros(1))
    loads = stage_loads(bare, len(plain.loads.layers))
    lasting = durations(order, loads.forward_s / k, loads.input_grad_s / k, loads.weight_grad_s / k)
    in_turn = bool(layer_at_a_time(layouts)[0])
    pipelined, beside = plain.pipe.p > 1 and not in_turn, bool(beside_passes(layouts)[0])
    overlap = setup.framework.overlap_grad_reduce_pipelined if pipelined else setup.framework.overlap_grad_reduce
    by = groups(setup.cluster, layouts)
    streams = run_streams(
        order,
        lasting,
        float(costs.traffic.send_s[0]) / k,
        bool(hop(setup.cluster, layouts).crosses[0]),
        Collectives(
            gather_s=plain.gather_s,
            reduce_s=plain.reduce_s,
            gather_overlap=beside * _hidden(setup.framework, costs),
            reduce_overlap=beside * overlap,
            on_network=any(bool(by[name].ranks[0] > by[name].local[0]) for name in ("data", "replica")),
        ),
        slow_down,
    )
    p = plain.pipe.p
    done = np.zeros(p)
    np.maximum.at(done, streams.rank, streams.end_s)
    done = done + plain.tied_s
    ready = done if plain.schedule.unsynchronised_end else np.full(p, done.max())
    update = plain.update_end_s - plain.update_start_s
    begin = streams.start_s[order.start[:-1]]
    finish = ready + update
    step = float((finish - begin).max() if plain.schedule.unsynchronised_end else finish.max())
    return StreamStep(plain=plain, streams=streams, update_start_s=ready, step_time_s=step)


def _hidden(framework: Framework, costs: StepCosts) -> float:
    """The part of the parameter gather that a pass of any length hides."""
    gather_s = float(costs.gather_s[0])
    if gather_s <= 0.0:
        return 0.0
    return 1.0 - float(shown_s(framework, costs.gather_s, costs.gather_link_s, np.inf)[0]) / gather_s
