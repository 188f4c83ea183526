"""Pipeline schedules by name: one file a family, its order of operations and its closed forms side by side."""

from planner.errors import UnknownNameError
from planner.schedules.base import Operation, Rule, Schedule
from planner.schedules.gpipe import GPipe
from planner.schedules.interleaved import Interleaved
from planner.schedules.one_f_one_b import OneFOneB

__all__ = ["SCHEDULES", "Operation", "Rule", "Schedule", "get_schedule"]

SCHEDULES: dict[str, Schedule] = {s.name: s for s in (GPipe(), OneFOneB(), Interleaved())}


def get_schedule(name: str) -> Schedule:
    """The schedule of that name.

    Raises:
        UnknownNameError: no schedule has that name; the message gives the nearest.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    return SCHEDULES[name]
