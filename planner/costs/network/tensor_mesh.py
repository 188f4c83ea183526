"""What a product x w sends and holds on a mesh of tensor ranks: in two, two and a half and three dimensions.

x is m tokens by k inputs, w is k by n. All figures are elements per rank and broadcast over m, k, n and the mesh. What
a rank sends is what ring algorithms send, as in the trainer, which runs these products (`planner.trainer.tensor_mesh`).

Sources: SUMMA (Van de Geijn and Watts 1997; Optimus, Xu et al. 2021, arXiv 2104.05343), Tesseract (Wang et al. 2021,
arXiv 2105.14500), the cube (Agarwal et al. 1995; Bian et al. 2021, arXiv 2105.14450). Read were the abstracts, Optimus'
code, and of Colossal-AI, which those authors wrote, its code (parallel_2d, parallel_2p5d, parallel_3d) and its tables
of volumes (docs/source/en/features); not the papers' own tables. Left out: biases, and a norm's sums over a row.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, record


@record
class ProductOnMesh:
    """Elements per rank of a product, broadcast over its sizes and the mesh's.

    forward, backward: sent for the result, and for both gradients. input, weight, output: held of each matrix, and of
    its gradient. kept: held from the forward to the backward pass for the gradients, weights among them.
    """

    forward: Array
    backward: Array
    input: Array
    weight: Array
    output: Array
    kept: Array


def on_square_meshes(m: Any, k: Any, n: Any, q: Any, d: Any = 1) -> ProductOnMesh:
    """A product on d meshes of q x q ranks, by SUMMA: two dimensions; with d over 1 two and a half.

    Each mesh has a d-th of the tokens and all of w. In each of q steps of a product one rank of a row and one of a
    column hands its block to the q - 1 others, or gets theirs and sums them: blocks of x and w in all three products,
    for those of y stay where they are. The meshes sum the gradient of w by an all-reduce, which Colossal-AI's table
    leaves out.
    """
    x, w, y = (np.asarray(size, dtype=float) for size in (m * k / (d * q**2), k * n / q**2, m * n / (d * q**2)))
    forward = (q - 1) * (x + w)
    backward = 2 * forward + 2 * (d - 1) / d * w
    return ProductOnMesh(forward=forward, backward=backward, input=x, weight=w, output=y, kept=x + w)


def on_cube(m: Any, k: Any, n: Any, q: Any, again: Any = False) -> ProductOnMesh:
    """A product on a cube of q ranks a side: three dimensions.

    Both operands are gathered, each along its side, and the result is reduced and scattered along the third. Backward
    the gradient of y is gathered once for both products. x and w stay gathered until then, as in Colossal-AI; `again`:
    they are gathered again instead.
    """
    x, w, y = (np.asarray(size, dtype=float) for size in (m * k / q**3, k * n / q**3, m * n / q**3))
    forward = (q - 1) * (x + w + y)
    backward = forward + np.where(again, (q - 1) * (x + w), 0.0)
    kept = np.where(again, 1, q) * (x + w)
    return ProductOnMesh(forward=forward, backward=backward, input=x, weight=w, output=y, kept=kept)
