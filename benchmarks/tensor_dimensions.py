"""What tensor parallelism in two and three dimensions sends beside one: python benchmarks/tensor_dimensions.py

Elements that a rank sends per layer, forward and backward, over tokens x hidden. One dimension: Megatron's with
sequence parallelism, eight gathers or reductions of the hidden state. Two: SUMMA (Van de Geijn and Watts 1997;
Optimus, Xu et al. 2021, arXiv 2104.05343): of each of three products of a pass a rank of a q x q mesh gets the q - 1
other parts of its row's and its column's operand. Two and a half: d such meshes with a part of the tokens each, which
sum weights' gradients (Tesseract, Wang et al. 2021, arXiv 2105.14500). Three: on a cube of l ranks a side both
operands are gathered along one side each and the result reduced along the third (Agarwal et al. 1995; Bian et al.
2021, arXiv 2105.14450). The formulas are recalled; Optimus' own, 28 + 48 h / (b s) over sqrt(p) with what its
recomputation repeats, is the same but for its trees of broadcasts.
"""

from planner.models import Transformer, load_model

MODELS = ("llama3-8b", "llama3-70b", "llama3.1-405b")
TOKENS = (8192, 32768)
ONE, TWO, DEEP, CUBE = (4, 8, 16, 64), ((4, 1), (16, 1), (64, 1)), ((8, 2), (32, 2), (64, 4)), (8, 64)


def products(model: Transformer) -> list[tuple[int, int]]:
    """Depth and columns of a dense layer's products."""
    heads = model.num_heads * model.head_dim
    inner = (2 if model.gated else 1) * model.ffn
    into = heads + 2 * model.num_kv_heads * model.head_dim
    return [(model.hidden, into), (heads, model.hidden), (model.hidden, inner), (model.ffn, model.hidden)]


def one(p: int) -> float:
    """Of tokens x hidden."""
    return 8 * (p - 1) / p


def two(model: Transformer, tokens: int, p: int, d: int) -> float:
    """The same on d meshes."""
    q = round((p / d) ** 0.5)
    each = [3 * (q - 1) / q * (tokens * k / (d * q) + k * n / q) + 2 * (d - 1) / d * k * n / q**2
            for k, n in products(model)]  # fmt: skip
    return sum(each) / (tokens * model.hidden)


def three(model: Transformer, tokens: int, p: int) -> float:
    """The same on a cube."""
    side = round(p ** (1 / 3))
    sent = sum(tokens * k + k * n + tokens * n for k, n in products(model))
    return 3 * (side - 1) / side**3 * sent / (tokens * model.hidden)


def main() -> None:
    print("| model | tokens | one: ranks " + ", ".join(map(str, ONE)) + " | two: 4, 16, 64 | two and a half: 8, 32, 64 "
          "| three: 8, 64 |\n| --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for name in MODELS:
        model = load_model(name)
        for tokens in TOKENS:
            cells = [
                [one(p) for p in ONE], [two(model, tokens, *mesh) for mesh in TWO],
                [two(model, tokens, *mesh) for mesh in DEEP], [three(model, tokens, p) for p in CUBE],
            ]  # fmt: skip
            print(f"| {name} | {tokens:,} | " + " | ".join(", ".join(f"{x:.1f}" for x in c) for c in cells) + " |")


if __name__ == "__main__":
    main()
