"""Answers that join scaling laws with the search of layouts: training time, shortest time, sensitivity, papers."""
