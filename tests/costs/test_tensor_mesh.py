"""What products on meshes send and hold, against the formulas of the papers' authors and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.costs.network.tensor_mesh import on_cube, on_square_meshes

Q = np.array([2, 3, 4, 8])
SIDE = np.array([2, 3, 4])


def layer(q, h, tokens):
    """Elements that a rank sends for a GPT layer's products: queries, keys and values, projection, MLP up and down."""
    each = [on_square_meshes(tokens, k, n, q) for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))]
    return sum(p.forward for p in each), sum(p.backward for p in each)


def test_optimus_volumes_of_a_layer():
    """Xu et al. 2021 (arXiv 2104.05343), table 1, recalled: log2 p / (2 sqrt p) (7 b s h + 12 h^2) forward, three times
    that backward, where a layer goes forward again. It counts log2 q blocks for a broadcast by a tree of q ranks, of
    which each sends q - 1 for q broadcasts.
    """
    h, tokens, p = 4096, 512 * 96, Q**2
    forward, backward = layer(Q, h, tokens)
    by_tree = np.log2(Q) * Q / (Q - 1)
    paper = np.log2(p) / (2 * np.sqrt(p)) * (7 * tokens * h + 12 * h**2)
    np.testing.assert_allclose(forward * by_tree, paper, rtol=1e-13)
    np.testing.assert_allclose((forward + backward) * by_tree, 3 * paper, rtol=1e-13)


def test_optimus_isoefficiency():
    """Xu et al. 2021, abstract (recalled): (sqrt p log p)^3. At that growth of the work, h and tokens alike, a layer's
    volume by trees stays in proportion to its arithmetic.
    """
    p = Q**2
    h = 512 * np.sqrt(p) * np.log2(p)
    by_tree = np.log2(Q) * Q / (Q - 1)
    share = sum(layer(Q, h, 4 * h)) * by_tree / (12 * h**2 * 4 * h / p)
    np.testing.assert_allclose(share, share[0], rtol=1e-13)


def test_volumes_in_colossal_ai_s_tables():
    """docs/source/en/features/{2D,2p5D,3D}_tensor_parallel.md (read at 4f9953be), forward and backward, by rings, of
    matrices of one element. A broadcast there is a block handed on q - 1 times, one after the other: what the q ranks
    of a row send together. The sum of weights' gradients over meshes isn't in the table of 2.5D.
    """
    two = on_square_meshes(1, 1, 1, Q)
    np.testing.assert_allclose(Q * (two.forward + two.backward), 6 * (Q - 1) / Q, rtol=1e-13)
    d = np.array([[1], [2], [4]])
    deep = on_square_meshes(1, 1, 1, Q, d)
    gradients = 2 * (d - 1) / d / Q**2
    table = 3 * (Q - 1) * (d + 1) / (d * Q)
    np.testing.assert_allclose(Q * (deep.forward + deep.backward - gradients), table, rtol=1e-13)
    three = on_cube(1, 1, 1, SIDE)
    np.testing.assert_allclose(three.forward + three.backward, 6 * (SIDE - 1) / SIDE**3, rtol=1e-13)


def test_memory_in_colossal_ai_s_tables():
    """The same tables: parameters over q^2, q^2 and q^3 ranks, activations over q^2, d q^2 and q^3."""
    two, deep, three = on_square_meshes(1, 1, 1, Q), on_square_meshes(1, 1, 1, Q, 4), on_cube(1, 1, 1, SIDE)
    for held, weights, tokens in ((two, Q**2, Q**2), (deep, Q**2, 4 * Q**2), (three, SIDE**3, SIDE**3)):
        np.testing.assert_allclose(held.weight * weights, 1)
        np.testing.assert_allclose([held.input * tokens, held.output * tokens], 1)
    np.testing.assert_allclose(two.kept, two.input + two.weight)
    # _Linear3D saves both operands gathered for its backward pass.
    np.testing.assert_allclose(three.kept, SIDE * (three.input + three.weight))


@pytest.mark.parametrize("again", [False, True])
def test_a_cube_by_hand(again):
    """2 x 2 x 2 ranks, x of 8 x 16, w of 16 x 32: blocks of 16, 64 and 32 elements, of each side two."""
    p = on_cube(8, 16, 32, 2, again)
    assert (p.input, p.weight, p.output) == (16, 64, 32)
    assert p.forward == 112
    assert p.backward == (112 + 80 if again else 112)
    assert p.kept == (80 if again else 160)


def test_meshes_by_hand():
    """2 meshes of 2 x 2 ranks, x of 8 x 16, w of 16 x 32; one rank sends nothing."""
    p = on_square_meshes(8, 16, 32, 2, 2)
    assert (p.input, p.weight, p.output) == (16, 128, 32)
    assert p.forward == 16 + 128
    assert p.backward == 2 * (16 + 128) + 128
    assert p.kept == 144
    for alone in (on_square_meshes(8, 16, 32, 1), on_cube(8, 16, 32, 1)):
        assert alone.forward == alone.backward == 0
