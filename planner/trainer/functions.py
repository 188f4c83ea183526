"""Forward and backward of the pieces without communication: products, norms, activations, rotary positions.

Shapes: b sequences, s tokens, i inputs, o outputs, h hidden, f inner size of the MLP, d head size; `...` any axes.
A gradient of the loss by x is `dx`. Backward is in two parts wherever there are weights: the input gradient, and
the weight gradient, which adds to what is there.
"""

import math
from typing import Any

from planner.trainer.arrays import Array, wide

EPS = 1e-5  # of norms
GELU_A = math.sqrt(2.0 / math.pi)
GELU_B = 0.044715


def product(x_bsi: Array, w_io: Array) -> Array:
    """x w, as one matrix product over all tokens, shape (b, s, o); i and o may each be several axes of w."""
    b, s, i = x_bsi.shape
    w_io = w_io.reshape(i, -1)
    return (x_bsi.reshape(b * s, i) @ w_io).reshape(b, s, w_io.shape[1])


def product_input_gradient(dy_bso: Array, w_io: Array) -> Array:
    """Gradient of `product` by x, shape (b, s, i)."""
    return product(dy_bso, w_io.reshape(-1, dy_bso.shape[-1]).T)


def add_product(x_bsi: Array, dy_bso: Array, dw_io: Array) -> None:
    """Add the gradient of `product` by w, summed over all tokens, to dw."""
    dw_io += x_bsi.reshape(-1, x_bsi.shape[-1]).T @ dy_bso.reshape(-1, dy_bso.shape[-1])


def norm(xp: Any, x_bsh: Array, rms: bool, eps: float) -> tuple[Array, Array]:
    """x normalized over h, and what it was multiplied by, shapes (b, s, h) and (b, s, 1).

    LayerNorm (Ba et al. 2016): (x - mean) / sqrt(var + eps); RMSNorm (Zhang and Sennrich 2019) without the mean.
    """
    given, x_bsh = x_bsh.dtype, wide(x_bsh)
    if not rms:
        x_bsh = x_bsh - x_bsh.mean(axis=-1, keepdims=True)
    scale_bs1 = 1.0 / xp.sqrt((x_bsh * x_bsh).mean(axis=-1, keepdims=True) + eps)
    return (x_bsh * scale_bs1).astype(given, copy=False), scale_bs1


def normalized(unit_bsh: Array, gain_h: Array, shift_h: Array | None) -> Array:
    """The norm's output from what `norm` gave: gain and, in LayerNorm, shift."""
    y_bsh = unit_bsh * gain_h
    if shift_h is not None:
        y_bsh += shift_h
    return y_bsh


def norm_input_gradient(dy_bsh: Array, unit_bsh: Array, scale_bs1: Array, gain_h: Array, rms: bool) -> Array:
    """Gradient by the norm's input: the part of dy along the unit vector, and in LayerNorm its mean, drop out."""
    given, dy_bsh, unit_bsh = dy_bsh.dtype, wide(dy_bsh), wide(unit_bsh)
    g_bsh = dy_bsh * gain_h
    dx_bsh = g_bsh - unit_bsh * (g_bsh * unit_bsh).mean(axis=-1, keepdims=True)
    if not rms:
        dx_bsh -= g_bsh.mean(axis=-1, keepdims=True)
    dx_bsh *= scale_bs1
    return dx_bsh.astype(given, copy=False)


def norm_weight_gradient(dy_bsh: Array, unit_bsh: Array, dgain_h: Array, dshift_h: Array | None) -> None:
    """Add the gradients by gain and shift."""
    dy_bsh, unit_bsh = wide(dy_bsh), wide(unit_bsh)
    dgain_h += (dy_bsh * unit_bsh).sum(axis=(0, 1))
    if dshift_h is not None:
        dshift_h += dy_bsh.sum(axis=(0, 1))


def gelu(xp: Any, x: Array) -> Array:
    """GELU in the tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    t = xp.tanh(GELU_A * (x + GELU_B * x * x * x))
    t += 1.0
    t *= x
    t *= 0.5
    return t


def gelu_gradient(xp: Any, dy: Array, x: Array) -> Array:
    """Gradient of `gelu` by x."""
    given, dy, x = x.dtype, wide(dy), wide(x)
    square = x * x
    t = xp.tanh(GELU_A * x * (1.0 + GELU_B * square))
    slope = GELU_A * (1.0 + 3.0 * GELU_B * square)
    return (dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)).astype(given, copy=False)


def sigmoid(xp: Any, x: Array) -> Array:
    """1 / (1 + exp(-x)), by tanh, which can't overflow."""
    return 0.5 * (1.0 + xp.tanh(0.5 * x))


def swiglu(xp: Any, gate_bsf: Array, up_bsf: Array) -> Array:
    """SwiGLU (Shazeer 2020): gate sigmoid(gate) up."""
    return gate_bsf * sigmoid(xp, gate_bsf) * up_bsf


def swiglu_gradient(xp: Any, dy_bsf: Array, gate_bsf: Array, up_bsf: Array) -> tuple[Array, Array]:
    """Gradients of `swiglu` by gate and up."""
    sigma = sigmoid(xp, gate_bsf)
    silu = gate_bsf * sigma
    return dy_bsf * up_bsf * (sigma + silu * (1.0 - sigma)), dy_bsf * silu


def activated(xp: Any, gated: bool, up: Array) -> Array:
    """The second product's input from the first product: GELU, or SwiGLU of its two halves (gate and up)."""
    if not gated:
        return gelu(xp, up)
    f = up.shape[-1] // 2
    return swiglu(xp, up[..., :f], up[..., f:])


def activated_gradient(xp: Any, gated: bool, dy: Array, up: Array) -> Array:
    """Gradient of `activated` by up."""
    if not gated:
        return gelu_gradient(xp, dy, up)
    f = up.shape[-1] // 2
    return xp.concatenate(swiglu_gradient(xp, dy, up[..., :f], up[..., f:]), axis=-1)


def rotary_table(xp: Any, positions_s: Array, d: int, dtype: Any) -> tuple[Array, Array]:
    """Cosines and sines of the positions, each of shape (s, d/2) (Su et al. 2021, base 10000)."""
    power = xp.arange(d // 2, dtype=xp.float64) / (d // 2)
    angle = positions_s.astype(xp.float64)[:, None] * (10000.0**-power)
    return xp.cos(angle).astype(dtype), xp.sin(angle).astype(dtype)


def rotate(xp: Any, x: Array, table: tuple[Array, Array], inverse: bool = False) -> Array:
    """Turn the two halves of the last axis by the position's angle; the inverse is also the gradient.

    x has shape (..., s, d).
    """
    cos_sd, sin_sd = table
    if inverse:
        sin_sd = -sin_sd
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return xp.concatenate([a * cos_sd - b * sin_sd, a * sin_sd + b * cos_sd], axis=-1)
