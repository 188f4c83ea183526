"""Parameters of a layer as one flat array with a named view for each: what is gathered, reduced and stepped at once.

Shapes: n elements of a unit on one tensor-parallel rank; a view has its parameter's own shape.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

from planner.trainer.arrays import Array

Views = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of the whole model.

    shape: before tensor parallelism; tp_axis: the axis that is split over its ranks, None where each has all.
    start: `normal` with standard deviation `std`, `ones` or `zeros`; decays: whether weight decay applies.
    """

    name: str
    shape: tuple[int, ...]
    tp_axis: int | None = None
    start: str = "normal"
    std: float = 0.02
    decays: bool = True

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """The shape of one rank's part."""
        if self.tp_axis is None:
            return self.shape
        before, n, after = self.shape[: self.tp_axis], self.shape[self.tp_axis], self.shape[self.tp_axis + 1 :]
        return (*before, n // tp, *after)

    def part(self, whole: Array, tp: int, t: int) -> Array:
        """Rank t's part of the whole parameter."""
        if self.tp_axis is None:
            return whole
        n = self.shape[self.tp_axis] // tp
        index = [slice(None)] * len(self.shape)
        index[self.tp_axis] = slice(t * n, (t + 1) * n)
        return whole[tuple(index)]


@dataclass(frozen=True)
class Unit:
    """Parameters that are used together, in one flat array; those that tensor ranks all hold whole come first.

    experts: of ranks that share experts, which then stand in for the tensor ranks (`planner.trainer.mesh`); shared: of
    all tensor ranks of a pipeline, which then do.
    """

    name: str
    parameters: tuple[Parameter, ...]
    experts: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        ordered = sorted(self.parameters, key=lambda p: p.tp_axis is not None)
        object.__setattr__(self, "parameters", tuple(ordered))

    def sizes(self, tp: int) -> list[int]:
        """Elements of each parameter on one rank."""
        return [math.prod(p.local_shape(tp)) for p in self.parameters]

    def num_elements(self, tp: int) -> int:
        """Elements of all parameters on one rank."""
        return sum(self.sizes(tp))

    def num_whole(self, tp: int) -> int:
        """Elements, at the front, of parameters that every tensor rank holds whole."""
        return sum(n for n, p in zip(self.sizes(tp), self.parameters, strict=True) if p.tp_axis is None)

    def views(self, flat_n: Array, tp: int) -> Views:
        """The parameters inside the flat array."""
        out, start = {}, 0
        for parameter, size in zip(self.parameters, self.sizes(tp), strict=True):
            out[parameter.name] = flat_n[start : start + size].reshape(parameter.local_shape(tp))
            start += size
        return out

    def initial(self, numpy: Any, seed: int, tp: int, t: int) -> Array:
        """Starting values of rank t, float64 on the host, shape (n,): the same model whatever the layout."""
        parts = []
        for p in self.parameters:
            if p.start == "normal":
                generator = numpy.random.default_rng([seed, zlib.crc32(f"{self.name}.{p.name}".encode())])
                whole = generator.normal(0.0, p.std, p.shape)
            else:
                whole = numpy.full(p.shape, 1.0 if p.start == "ones" else 0.0)
            parts.append(p.part(whole, tp, t).ravel())
        return numpy.concatenate(parts)

    def spread(self, numpy: Any, value: Any, tp: int) -> Array:
        """One number a parameter, `value(parameter)`, on each of its elements, shape (n,)."""
        return numpy.repeat([float(value(p)) for p in self.parameters], self.sizes(tp))
