"""Pipeline schedules by name: one file a family, its order of operations and its closed forms side by side."""

from planner.base.errors import UnknownNameError
from planner.base.lookup import same_name
from planner.schedules.asynchronous import PipeDream, SpecTrain, TwoBufferedWeights, XPipe
from planner.schedules.base import Loads, Operation, Order, Pipeline, Rule, Schedule
from planner.schedules.bitpipe import BitPipe
from planner.schedules.breadth_first import BreadthFirst, Layered, Modular
from planner.schedules.chimera import Chimera
from planner.schedules.chronos import ChronosPipe
from planner.schedules.controllable_memory import VHalf, VMin
from planner.schedules.dualpipe import DualPipe, DualPipeV
from planner.schedules.gpipe import GPipe, TeraPipe
from planner.schedules.hanayo import Hanayo
from planner.schedules.interleaved import Interleaved, Seq1F1BInterleaved
from planner.schedules.one_f_one_b import OneFOneB, Seq1F1B
from planner.schedules.one_f_one_b_v import OneFOneBV
from planner.schedules.two_stage_backward import TwoStageBackward
from planner.schedules.vocabulary import Interlaced, VHalfVocabulary1, VHalfVocabulary2, Vocabulary1, Vocabulary2
from planner.schedules.zero_bubble import Seq1F1BZeroBubble, ZeroBubbleH1, ZeroBubbleH2
from planner.schedules.zero_bubble_fitted import ZeroBubble1p, ZeroBubble2p
from planner.schedules.zero_bubble_v import ZeroBubbleV

SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in (
    GPipe(), TeraPipe(),
    OneFOneB(), Seq1F1B(), OneFOneBV(), Vocabulary1(), Vocabulary2(), Interlaced(),
    Interleaved(), Seq1F1BInterleaved(), BreadthFirst(), Layered(), Modular(),
    TwoStageBackward(), ZeroBubbleH1(), ZeroBubbleH2(), Seq1F1BZeroBubble(), ZeroBubble1p(), ZeroBubble2p(),
    ZeroBubbleV(), VHalf(), VMin(), VHalfVocabulary1(), VHalfVocabulary2(),
    Chimera(), BitPipe(), ChronosPipe(), Hanayo(), DualPipe(), DualPipeV(),
    TwoBufferedWeights(), PipeDream(), XPipe(), SpecTrain(),
)}  # fmt: skip
"""By name, one family after another."""

ALIASES = {
    "pipedream-flush": "1f1b",  # Narayanan et al. 2021's name
    "dapple": "1f1b",
    "depth-first": "interleaved",  # Lamy-Poirier 2022's name for Megatron-LM's order
    "pipedream-2bw": "2bw",
    "looped-bfs": "breadth-first",  # PyTorch's name
}


def get_schedule(name: str) -> Schedule:
    """The schedule of that name or alias, however it is written: 1F1B, zb_h1.

    Raises UnknownNameError if no schedule has that name; the message gives the nearest.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    known = [*SCHEDULES, *ALIASES]
    found = name if name in ALIASES else same_name(name, known)
    if found is None:
        raise UnknownNameError("schedule", name, known)
    return SCHEDULES[ALIASES.get(found, found)]


def usual_schedule(virtual_stages: int, sequence_slices: int) -> str:
    """The schedule of a layout that names none: 1f1b, or its kin with several virtual stages or sequence slices."""
    if sequence_slices > 1:
        return "seq1f1b-interleaved" if virtual_stages > 1 else "seq1f1b"
    return "interleaved" if virtual_stages > 1 else "1f1b"
