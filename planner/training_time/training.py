"""A training on a cluster: what stays the same while layouts, or one quantity at a time, change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.adapters import trained_parameters
from planner.layouts import Layouts
from planner.scaling.training import Storage, TrainingTime, tokens_at_batch, training_time
from planner.setup import Setup
from planner.training_time.assumptions import Assumptions
from planner.training_time.goal import Goal

NOT_TUNING = "the laws are of training from scratch: of adapters they tell neither the loss nor the critical batch"


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """How long a setup trains to its goal, under assumptions on failures, storage and prices.

    train: what is trained, as of `Fixed.train`.
    """

    setup: Setup
    goal: Goal
    assumptions: Assumptions
    train: int = 0

    @cached_property
    def storage(self) -> Storage:
        """A checkpoint of what is trained, and where it goes."""
        return self.assumptions.storage(trained_parameters(self.setup, self.train))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the goal's laws were not made for."""
        return (*self.goal.warnings, *[NOT_TUNING] * bool(self.train))

    def runs(self, step_time_s: Any, layouts: Layouts, relaxed: float = 1.0) -> TrainingTime:
        """Trainings of layouts whose steps take so long; `relaxed` multiplies the scale of the critical batch."""
        batch = layouts.global_batch * float(self.setup.model.seq_len)
        tokens = tokens_at_batch(self.goal.target.tokens, batch, self.goal.scale * relaxed, self.goal.rule)
        return self.run(step_time_s, layouts.gpus, batch, tokens)

    def run(self, step_time_s: Any, gpus: Any, batch_tokens: Any, tokens: Any) -> TrainingTime:
        """A training over so many tokens in steps of `batch_tokens` that take so long."""
        a = self.assumptions
        return training_time(
            step_time_s, gpus, batch_tokens, tokens,
            reliability=a.reliability, storage=self.storage, prices=a.prices,
        )  # fmt: skip

    def wall_s(self, step_time_s: Any, fits: Any, layouts: Layouts, relaxed: float = 1.0) -> Array:
        """Wall seconds, endless where a layout does not fit or its batch is over the critical one that is a cap."""
        run = self.runs(step_time_s, layouts, relaxed)
        ok = fits
        if self.goal.rule == "cap":
            ok = ok & (run.batch_tokens <= self.goal.critical * relaxed)
        return np.asarray(np.where(ok, run.wall_s, np.inf))

    def with_assumption(self, name: str, factor: float) -> TrainingCase:
        """The same with one assumption multiplied, which must have a value."""
        figure = self.assumptions.figures[name]
        assert figure.value is not None, name
        figures = {**self.assumptions.figures, name: replace(figure, value=figure.value * factor)}
        return replace(self, assumptions=replace(self.assumptions, figures=figures))
