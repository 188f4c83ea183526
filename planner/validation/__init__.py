"""Measured runs beside predictions: reading, filling what is not said, predicting, scoring."""

from planner.validation.accuracy import Accuracy, accuracy_of, accuracy_sentence, scores, shipped_files, unseen_files
from planner.validation.interval import step_interval_s, unlike
from planner.validation.predict import Predictions, predict
from planner.validation.runs import MeasuredRun, read_runs
from planner.validation.score import rank_correlation, score
