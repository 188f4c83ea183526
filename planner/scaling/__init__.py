"""Scaling laws, critical batch, goodput, cost: everything on top of a step time that is passed in; no layouts here."""

from planner.scaling.batch import (
    BATCH_RULES,
    TrainingTarget,
    batch_scale_tokens,
    compute_optimal,
    critical_batch_tokens,
    extrapolations,
    noise_scale,
    samples_factor,
    sizes,
)
from planner.scaling.frontier import knee
from planner.scaling.goodput import Reliability, checkpoint_interval_s, checkpoint_s, goodput
from planner.scaling.laws import (
    ComputeOptimal,
    CriticalBatchLaw,
    LossLaw,
    compute_optimal_names,
    critical_batch_names,
    get_compute_optimal,
    get_critical_batch_law,
    get_loss_law,
    loss_names,
)
from planner.scaling.loss import compute_optimal_size, compute_optimal_tokens, least_loss, loss_at, tokens_for_loss
from planner.scaling.training import Prices, Storage, TrainingTime, tokens_at_batch, training_time

__all__ = [
    "BATCH_RULES",
    "ComputeOptimal",
    "CriticalBatchLaw",
    "LossLaw",
    "Prices",
    "Reliability",
    "Storage",
    "TrainingTarget",
    "TrainingTime",
    "batch_scale_tokens",
    "checkpoint_interval_s",
    "checkpoint_s",
    "compute_optimal",
    "compute_optimal_names",
    "compute_optimal_size",
    "compute_optimal_tokens",
    "critical_batch_names",
    "critical_batch_tokens",
    "extrapolations",
    "get_compute_optimal",
    "get_critical_batch_law",
    "get_loss_law",
    "goodput",
    "knee",
    "least_loss",
    "loss_at",
    "loss_names",
    "noise_scale",
    "samples_factor",
    "sizes",
    "tokens_at_batch",
    "tokens_for_loss",
    "training_time",
]
