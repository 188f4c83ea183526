"""The mini-trainer: a small transformer trained for real by the very schedule that a plan names."""
