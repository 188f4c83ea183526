"""The layouts that exist, those that may matter, the best one, and why not another (`ranking.recommend`)."""

from planner.search.found import Recommendation, largest_part
from planner.search.ranking import OBJECTIVES, recommend
from planner.search.request import Fixed, attention_kernels, default_attention, default_precision
