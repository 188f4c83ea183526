"""What other programs read: PyTorch's schedules, traces."""
