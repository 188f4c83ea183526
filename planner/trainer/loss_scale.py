"""Dynamic loss scaling for 16-bit training (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).

Gradients of a small loss vanish in 16 bits, so the loss is multiplied before the backward pass and gradients are
divided after it, in 32 bits. A step whose gradients overflow is left out and the scale halved; after many good ones it
doubles.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.base.errors import ExecutionError

GROW_AFTER = 1000  # good steps in a row
LEAST, MOST = 1.0, 2.0**24


@dataclass(kw_only=True)
class LossScale:
    """The scale, and how many steps in a row were good; the same on every rank."""

    value: float = 2.0**16
    good_steps: int = 0
    skipped: int = 0

    def judge(self, finite: bool) -> None:
        """Learn whether a step's gradients were finite. Raises ExecutionError if they are not, at the least scale."""
        if not finite:
            if self.value <= LEAST:
                raise ExecutionError(
                    "gradients overflow in 16 bits even without a loss scale; try a lower learning rate or fp32"
                )
            self.value, self.good_steps, self.skipped = max(self.value / 2.0, LEAST), 0, self.skipped + 1
            return
        self.good_steps += 1
        if self.good_steps >= GROW_AFTER:
            self.value, self.good_steps = min(2.0 * self.value, MOST), 0
