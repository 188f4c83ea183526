"""The edges of a tensor-parallel region (Shoeybi et al. 2019; with sequence parallelism Korthikanti et al. 2022).

Inside, each rank has its columns of the first product and its rows of the second. Entering is an identity whose
gradient is an all-reduce; leaving is an all-reduce whose gradient is an identity. With sequence parallelism the
outside is split over tokens: entering gathers them, leaving reduces and scatters, and gradients do the opposite.

Shapes: b sequences, s tokens of this rank (a tp-th of the slice under sequence parallelism), S tokens of the slice,
h hidden.
"""

from dataclasses import dataclass

from planner.trainer.arrays import Array
from planner.trainer.communicator import Communicator, RankGroup

TOKENS = 1  # axis


@dataclass(frozen=True, kw_only=True)
class Region:
    """A rank's share of the tensor-parallel regions."""

    communicator: Communicator
    group: RankGroup
    index: int
    sequence_parallel: bool

    @property
    def size(self) -> int:
        """Ranks in the region."""
        return len(self.group)

    @property
    def split_tokens(self) -> bool:
        """Whether tokens are split outside of the region."""
        return self.sequence_parallel and self.size > 1

    def enter(self, x_bsh: Array) -> Array:
        """Into the region, shape (b, S, h)."""
        return self.communicator.all_gather(x_bsh, self.group, TOKENS) if self.split_tokens else x_bsh

    def enter_gradient(self, dx_bSh: Array) -> Array:
        """Gradient of `enter`: each rank has a part of the sum."""
        if self.split_tokens:
            return self.communicator.reduce_scatter(dx_bSh, self.group, TOKENS)
        return self.communicator.all_reduce(dx_bSh, self.group)

    def leave(self, y_bSh: Array) -> Array:
        """Out of the region: the ranks' parts summed, shape (b, s, h)."""
        return self.enter_gradient(y_bSh)

    def leave_gradient(self, dy_bsh: Array) -> Array:
        """Gradient of `leave`."""
        return self.enter(dy_bsh)

    def sum(self, x: Array) -> Array:
        """Sum over the region's ranks."""
        return self.communicator.all_reduce(x, self.group)

    def max(self, x: Array) -> Array:
        """Maximum over the region's ranks."""
        return self.communicator.all_reduce(x, self.group, "max")

    def my_tokens(self, S: int) -> slice:
        """The tokens of a slice that are this rank's outside of the region."""
        if not self.split_tokens:
            return slice(0, S)
        s = S // self.size
        return slice(self.index * s, (self.index + 1) * s)
