"""What is asked of each framework and of planner alike; what a row leaves out is 1, none, or the framework's usual."""

from __future__ import annotations

from typing import Any

EIGHT_B = {"model": "llama3-8b", "seq_len": 8192, "gpus": 16}
SEVENTY_B = {"model": "llama3-70b", "seq_len": 8192, "gpus": 64}
DENSE_QWEN = {"model": "qwen3-14b", "seq_len": 4096, "gpus": 16}
QWEN = {"model": "qwen3-30b-a3b", "seq_len": 4096, "gpus": 16}
LITE = {"model": "deepseek-v2-lite", "seq_len": 4096, "gpus": 16}
OSS = {"model": "gpt-oss-20b", "seq_len": 4096, "gpus": 16}
OLD = {"model": "llama2-13b", "seq_len": 4096, "gpus": 16}
MIXTRAL = {"model": "mixtral-8x7b", "seq_len": 4096, "gpus": 16}
SHORT = EIGHT_B | {"seq_len": 2048}


def all_of(common: dict[str, Any], *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that share some of their entries."""
    return [common | row for row in rows]


KINDS = [{"recompute": "none"}, {"recompute": "selective"}, {"recompute": "full"}]

CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "torchtitan": [
        *all_of(EIGHT_B, *KINDS, {"micro_batch": 2}, {"zero": 2}, {"dp_replicate": 2}),
        *all_of(EIGHT_B | {"tp": 4}, *KINDS, {"sequence_parallel": False}, {"sequence_parallel": False} | KINDS[1]),
        *all_of(EIGHT_B | {"cp": 2}, *KINDS),
        *all_of(EIGHT_B, {"cp": 4}, {"cp": 2, "tp": 2}, {"tp": 8} | KINDS[1]),
        *all_of(SEVENTY_B | {"tp": 8}, *KINDS),
        *all_of(DENSE_QWEN, *KINDS[:2], {"tp": 2} | KINDS[1]),
        *all_of(QWEN, {}, *({"ep": 8} | kind for kind in KINDS)),
        *all_of(LITE, *({"ep": 8} | kind for kind in KINDS)),
        *all_of(OSS, {"ep": 8}, {"ep": 8} | KINDS[2]),
    ],
    "megatron-core": [
        *all_of(EIGHT_B | {"zero": 1}, {}, {"tp": 2}, {"tp": 4}, {"tp": 8}, {"tp": 4, "sequence_parallel": False}),
        *all_of(EIGHT_B | {"zero": 1, "tp": 4}, KINDS[2], {"sequence_parallel": False} | KINDS[2], {"micro_batch": 2}),
        *all_of(SHORT | {"zero": 1, "tp": 4, "attention": "unfused"}, KINDS[0], KINDS[1], KINDS[2]),
        *all_of(OLD | {"zero": 1}, {"tp": 2}, {"tp": 4}, {"tp": 4} | KINDS[2]),
        *all_of(MIXTRAL | {"zero": 1}, {"ep": 4}, {"ep": 8}, {"ep": 8} | KINDS[2]),
        *all_of(QWEN | {"zero": 1}, {"ep": 8}, {"ep": 8} | KINDS[2]),
    ],
    "transformers": [
        *all_of(EIGHT_B, KINDS[0], KINDS[2], {"zero": 2}),
        *all_of(DENSE_QWEN, KINDS[0], KINDS[2]),
        *all_of(OLD, KINDS[0], KINDS[2]),
    ],
    "deepspeed": [
        *all_of(EIGHT_B, *({"zero": stage} | kind for stage in (1, 2, 3) for kind in (KINDS[0], KINDS[2]))),
        *all_of(DENSE_QWEN, {"zero": 2}, {"zero": 3}),
        *all_of(OLD, {"zero": 1, "micro_batch": 2}, {"zero": 3} | KINDS[2]),
    ],
}
"""Of each framework, by the name of its file here."""


def title(asked: dict[str, Any]) -> str:
    """A configuration in one line."""
    return " ".join(f"{k} {v}" if k != "model" else str(v) for k, v in asked.items() if k not in ("seq_len", "gpus"))
