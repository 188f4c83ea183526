"""Optimizers on flat arrays, clipping by the global norm, and the loss scale of 16-bit training.

Shapes: k elements that this rank owns of a unit.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from planner.base.errors import ExecutionError, UnknownNameError
from planner.trainer.arrays import Array

State = dict[str, Array]


class Optimizer(ABC):
    """How a gradient changes parameters. State is a dictionary of arrays of shape (k,) for each unit."""

    learning_rate: float
    states: dict[str, State]

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """Names of the arrays that a unit's state has."""

    def state(self, xp: Any, name: str, w_k: Array) -> State:
        """A unit's state; zeros before its first update."""
        state = self.states.setdefault(name, {})
        for key in self.state_names:
            if key not in state:
                state[key] = xp.zeros_like(w_k)
        return state

    @abstractmethod
    def update(self, xp: Any, name: str, w_k: Array, g_k: Array, decays_k: Array, step: int) -> None:
        """Change a unit's parameters in place; `step` counts from 1, `decays` is 1 where weight decay applies."""

    @abstractmethod
    def direction(self, xp: Any, name: str, step: int) -> Array:
        """Change of a unit's parameters in the last update, per learning rate, shape (k,); weight decay left out."""


@dataclass(kw_only=True)
class SGD(Optimizer):
    """w -= lr v with v = momentum v + g."""

    learning_rate: float = 0.1
    momentum: float = 0.0
    states: dict[str, State] = field(default_factory=dict)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The momentum's, where there is one."""
        return ("v",) if self.momentum else ()

    def update(self, xp: Any, name: str, w_k: Array, g_k: Array, decays_k: Array, step: int) -> None:
        """See `Optimizer`."""
        if self.momentum:
            v = self.state(xp, name, w_k)["v"]
            v *= self.momentum
            v += g_k
            g_k = v
        w_k -= self.learning_rate * g_k

    def direction(self, xp: Any, name: str, step: int) -> Array:
        """The momentum; zero without one."""
        return self.states[name]["v"] if self.momentum and name in self.states else 0.0


@dataclass(kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); weight decay apart from the gradient is AdamW (Loshchilov and Hutter 2019)."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    states: dict[str, State] = field(default_factory=dict)

    state_names = ("m", "v")
    """The two moments."""

    def update(self, xp: Any, name: str, w_k: Array, g_k: Array, decays_k: Array, step: int) -> None:
        """See `Optimizer`."""
        state = self.state(xp, name, w_k)
        m, v = state["m"], state["v"]
        m *= self.beta1
        m += (1 - self.beta1) * g_k
        v *= self.beta2
        v += (1 - self.beta2) * (g_k * g_k)
        if self.weight_decay:
            w_k *= 1 - self.learning_rate * self.weight_decay * decays_k
        w_k -= self.learning_rate * self.direction(xp, name, step)

    def direction(self, xp: Any, name: str, step: int) -> Array:
        """m / (1 - beta1^t) over sqrt(v / (1 - beta2^t)) + eps."""
        state = self.states[name]
        root = xp.sqrt(state["v"] / (1 - self.beta2**step))
        root += self.eps
        return state["m"] / (root * (1 - self.beta1**step))


def make_optimizer(name: str, learning_rate: float, weight_decay: float) -> Optimizer:
    """An optimizer by name. Raises UnknownNameError if none has that name."""
    if name == "sgd":
        return SGD(learning_rate=learning_rate)
    if name in ("adam", "adamw"):
        return Adam(learning_rate=learning_rate, weight_decay=weight_decay if name == "adamw" else 0.0)
    raise UnknownNameError("optimizer", name, ["sgd", "adam", "adamw"])


GROW_AFTER = 1000  # good steps in a row
LEAST, MOST = 1.0, 2.0**24


@dataclass(kw_only=True)
class LossScale:
    """The scale, and how many steps in a row were good; the same on every rank.

    Gradients of a small loss vanish in 16 bits, so the loss is multiplied before the backward pass and gradients are
    divided after it, in 32 bits. A step whose gradients overflow is left out and the scale halved; after many good ones
    it doubles (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).
    """

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
