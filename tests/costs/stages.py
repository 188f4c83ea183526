"""The stages of layouts under costs that a test states."""

from planner.step.splits import end_layers, split_layers


def stages_of(layouts, num_layers, *costs, chunks=1, **more):
    """The stages; costs and the rest as `end_layers` takes them."""
    return split_layers(layouts, num_layers, end_layers(layouts, num_layers, *costs, chunks=chunks, **more), chunks)
