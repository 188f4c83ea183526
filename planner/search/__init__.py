"""The space of layouts, and the search through all of it."""

from planner.search.ranking import OBJECTIVES, Recommendation, largest_part, recommend
from planner.search.space import Fixed, default_attention, default_precision, enumerate_layouts

__all__ = [
    "OBJECTIVES",
    "Fixed",
    "Recommendation",
    "default_attention",
    "default_precision",
    "enumerate_layouts",
    "largest_part",
    "recommend",
]
