"""The space of layouts as one table, from a request's parts."""

from typing import Any

from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.models import Transformer
from planner.search.request import Request
from planner.search.space import whole_space


def enumerate_layouts(model: Transformer, cluster: Cluster, **asked: Any) -> Layouts:
    """Every legal layout as a table; asked: as of `Request`; raises what `planner.search.space.space` does."""
    return whole_space(model, cluster, Request(**asked))
