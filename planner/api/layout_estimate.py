"""One layout with what it costs: what `estimate` returns and what a plan is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.anchored import anchor_entry, anchor_lines, anchored, interval_s, trust, unlike_measured
from planner.api.answer import Answer, Shown
from planner.api.assumed import assumed
from planner.api.frameworks import layout_under
from planner.api.inputs import ClusterLike, LayoutChoices, ModelLike, setup_of
from planner.base.files import given_path
from planner.choices.choice import word
from planner.layouts import Layouts
from planner.plan_file import SavedPlan
from planner.question import batch_or_usual, check_elsewhere
from planner.report import records, tables
from planner.report.plain_table import View, stacked
from planner.report.records import layout_frame
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.step.legality import check_legal
from planner.step.timeline.timed import timed_estimate

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from planner.api.plan import Plan
    from planner.api.simulated import Simulation
    from planner.exporters.plan_export import Export


@dataclass(frozen=True, repr=False, eq=False)
class LayoutEstimate(Shown):
    """One layout: seconds and bytes of a step, with what they are made of.

    Prints as `planner estimate` does; in a notebook, as tables.

    Attributes:
        setup: model, cluster and framework.
        table: the estimates that this one is of, arrays over layouts.
        row: its place there.
        judged: whether its memory says that it fits, or doesn't.
    """

    setup: Setup
    table: Estimate
    row: int
    judged: bool = True

    @cached_property
    def _record(self) -> dict[str, Any]:
        return records.estimate_record(self.table, self.row, self.setup.cluster)

    @property
    def _one(self) -> Layouts:
        return self.table.layouts.take(slice(self.row, self.row + 1))

    @property
    def layout(self) -> dict[str, Any]:
        """The choices by name: dp, tp, pp, micro_batch, schedule and the rest."""
        return dict(self._record["layout"])

    @property
    def gpus(self) -> int:
        """Accelerators that it uses."""
        return int(self._record["gpus"])

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and replica."""
        return int(self._record["micro_batches"])

    @property
    def step_time_s(self) -> float:
        """Seconds of an optimizer step."""
        return float(self._record["step_time_s"])

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput."""
        return float(self._record["tokens_per_s_per_gpu"])

    @property
    def mfu(self) -> float:
        """Model FLOP (6N + 12 L H Q T a token, Chowdhery et al. 2022) over peak, 0 to 1."""
        return float(self._record["mfu"])

    @property
    def memory_gib(self) -> float:
        """Peak of the fullest rank."""
        return float(self._record["memory_gib"])

    @property
    def fits(self) -> bool:
        """Whether that is within the accelerator's memory."""
        return bool(self._record["fits"])

    @property
    def time_parts_s(self) -> dict[str, float]:
        """The step by cause, seconds that add up to it."""
        return dict(self._record["time_s"])

    @property
    def memory_parts_gib(self) -> dict[str, float]:
        """The peak by content."""
        return dict(self._record["memory_parts_gib"])

    @property
    def cost_usd_per_step(self) -> float | None:
        """Money a step, where the cluster's profile has a price."""
        cost = self._record["cost_usd_per_step"]
        return None if cost is None else float(cost)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The estimate's assumptions, a phrase each."""
        return assumed(self.setup, self._one)

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """Between which seconds the measured step lies in 80 % of such cases: wide where no measured run is like it."""
        return interval_s(self.setup, self.table, self.row)

    @property
    def unlike(self) -> str:
        """In what no measured run is like this one, for which the interval is wide; empty where some are."""
        return unlike_measured(self.setup, self.table, self.row)

    def simulate(self) -> Simulation:
        """The exact timeline of this layout's step. Raises as `planner.simulate`."""
        from planner.api.simulated import simulate_layouts

        return simulate_layouts(self.setup, self._one)

    def as_plan(self) -> SavedPlan:
        """This layout as a plan, which an exporter takes."""
        return SavedPlan(setup=self.setup, layouts=self._one, record=self._record)

    def export(self, to: str, path: str | os.PathLike[str] | None = None, *, base: str | None = None) -> Export:
        """This layout as a framework's own file: its `text`, `notes` on what the framework can't express, a `warning`.

        to: megatron, megatron-bridge, deepspeed, torchtitan, torchtitan-toml or accelerate (docs/exports.md).
        path: where to write it, with what it needs beside it; None writes nothing. base: torchtitan's own recipe.

        Raises:
            UnknownNameError: planner writes nothing for that framework.
            LayoutError: the framework runs nothing like this layout.
            OutputError: the path can't be written.
        """
        from planner.exporters.plan_export import export_plan, get_target

        target = None if path is None else given_path("path", path)
        done = export_plan(self.as_plan(), get_target(word("to", to)), path=target, base=base)
        if target is not None:
            done.write(target)
        return done

    def to_dict(self) -> dict[str, Any]:
        """The record that `planner estimate --json` prints; docs/json.md has the keys."""
        question = records.question_record(self.setup, self.gpus, self.layout["global_batch"])
        trust = {"step_time_interval_s": self.step_time_interval_s, "unlike_measured": self.unlike}
        return question | self._record | trust | {"assumed": list(self.assumed)} | anchor_entry(self.setup)

    def to_pandas(self) -> pandas.DataFrame:
        """One row: choices, seconds, GiB, and the parts of both."""
        return layout_frame(self.table, [self.row])

    def plot(self) -> Figure:
        """Seconds and GiB by part, as a figure of matplotlib."""
        from planner.report.plots import draw_layouts

        return draw_layouts(self._title, self._record)

    @property
    def _title(self) -> str:
        return tables.question_title(self.setup, self.gpus, self.layout["global_batch"])

    @property
    def lines(self) -> tuple[View, ...]:
        """The lines that `planner estimate` prints."""
        setup = self.setup
        told = (self.step_time_interval_s, self.assumed, self.unlike, self.judged)
        shown = tables.estimate_view(self.table, self.row, setup.model, *told)
        more = anchor_lines(setup, self._one)
        return (self._title, "", shown, "", *more) if more else (self._title, "", shown)


def closed(
    title: str, record: dict[str, Any], view: View, draw: Callable[[Any], Figure], one: LayoutEstimate,
    plan: Plan | None = None, kept: bool = True,
) -> Answer:  # fmt: skip
    """The answer that closes with the assumptions on a layout, and how accurate it is; plan, kept: as of `Answer`."""
    accuracy = trust(one.setup, one.step_time_interval_s, step_s=one.step_time_s, unlike=one.unlike)
    record |= {"assumed": list(one.assumed), "accuracy": accuracy} | anchor_entry(one.setup)
    lines = tables.closing_lines(one.assumed, accuracy)
    if more := anchor_lines(one.setup, one._one):
        lines += ["", *more]
    return Answer(title, record, stacked(view, *lines), partial(draw, record), plan, kept)


def estimate(
    model: ModelLike,
    cluster: ClusterLike,
    *,
    batch: int | None = None,
    framework: str | None = None,
    anchor: str | os.PathLike[str] | None = None,
    **choices: Unpack[LayoutChoices],
) -> LayoutEstimate:
    """Seconds and bytes of one layout's step, with what they are made of.

    batch: sequences per optimizer step; None is about 4M tokens. dp, tp, pp, cp, ep: degrees of data, tensor, pipeline,
    context and expert parallelism; it runs on dp * tp * pp * cp accelerators. micro_batch: sequences per micro-batch.
    virtual_stages: model chunks a pipeline rank. sequence_slices: of a sequence, for seq1f1b and its like.
    schedule: None is 1f1b, interleaved with virtual stages, seq1f1b with slices. zero: ZeRO stage, 0 to 3.
    recompute: none, selective, fine or full; recompute_layers: of each virtual stage, 0 all.
    layer_split: even, balanced (by cost), parameters, products, ends (embedding and head count as a layer each) or
    last (a short last stage); None is the framework's own.
    pipeline_layout: the stages layer by layer instead, as Megatron-LM writes them: "Et*3|(tt|)*29m|L".
    framework, precision, attention: None is what is usual on the cluster. What is not given is 1 of a degree, a
    micro-batch, zero; Adam; no recomputation; sequence parallelism where torchtitan turns it on by itself. anchor: a
    CSV of runs measured on such a machine, which correct its figures.

    Raises:
        InputError: a value out of range, or of the wrong kind; names the field.
        UnknownNameError: no such model, cluster, framework, schedule, recompute mode, split, precision or kernel.
        FileFormatError: a file that can't be read, parsed or validated.
        LayoutError: a layout that breaks a rule of parallelism.
    """
    setup = anchored(setup_of(model, cluster, framework), anchor)
    check_elsewhere(choices)
    each = batch_or_usual(batch, setup.model.seq_len, choices.get("dp", 1))
    return estimate_one(setup, global_batch=each, **choices)


def estimate_one(setup: Setup, **choices: Any) -> LayoutEstimate:
    """The estimate of a question's layout; choices: by name, as `layout_under`. Raises as `estimate`."""
    layouts = layout_under(setup, **choices)
    check_legal(setup.model, setup.cluster, layouts)
    return LayoutEstimate(setup, timed_estimate(setup, layouts), 0)
