"""What tensor parallelism in two and three dimensions sends beside one: python benchmarks/tensor_dimensions.py

Elements that a rank sends per layer, forward and backward, over tokens x hidden, of products alone. One dimension:
Megatron's with sequence parallelism, eight gathers or reductions of the hidden state, gathered inputs kept. Two, two
and a half, three: `planner.costs.network.tensor_mesh`, which has the sources; three with gathered operands kept, and
with them gathered again.
"""

from planner.costs.network.tensor_mesh import ProductOnMesh, on_cube, on_square_meshes
from planner.models import Transformer, load_model

MODELS = ("llama3-8b", "llama3-70b", "llama3.1-405b")
TOKENS = (8192, 32768)
ONE, TWO, DEEP, CUBE = (4, 8, 16, 64), (2, 4, 8), ((2, 2), (4, 2), (4, 4)), (2, 4)


def products(model: Transformer) -> list[tuple[int, int]]:
    """Depth and columns of a dense layer's products."""
    heads = model.num_heads * model.head_dim
    inner = (2 if model.gated else 1) * model.ffn
    into = heads + 2 * model.num_kv_heads * model.head_dim
    return [(model.hidden, into), (heads, model.hidden), (model.hidden, inner), (model.ffn, model.hidden)]


def sent(each: list[ProductOnMesh]) -> float:
    """Of a layer's products."""
    return sum(float(product.forward + product.backward) for product in each)


def main() -> None:
    print("| model | tokens | one dimension: 4, 8, 16, 64 ranks | two: 4, 16, 64 | two and a half: 8, 32, 64 "
          "| three: 8, 64 | three, gathered again: 8, 64 |\n| --- | --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for name in MODELS:
        model = load_model(name)
        for m in TOKENS:
            every = products(model)
            cells = [
                [8 * (p - 1) / p * m * model.hidden for p in ONE],
                [sent([on_square_meshes(m, k, n, q) for k, n in every]) for q in TWO],
                [sent([on_square_meshes(m, k, n, q, d) for k, n in every]) for q, d in DEEP],
                *([sent([on_cube(m, k, n, q, again) for k, n in every]) for q in CUBE] for again in (False, True)),
            ]
            rows = (", ".join(f"{x / m / model.hidden:.1f}" for x in c) for c in cells)
            print(f"| {name} | {m:,} | {' | '.join(rows)} |")


if __name__ == "__main__":
    main()
