"""A plan as a file that another program reads: a framework's launch, PyTorch's schedules, traces."""
