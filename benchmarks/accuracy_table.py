"""The table of docs/accuracy.md: errors by GPU generation and kind of model, familiar and new publications.

    python benchmarks/accuracy_table.py

A shipped run is predicted by a fit that had not seen its publication; an unseen run by the shipped profiles, which no
run of its publication was fitted to. `step`: the mean over sets of the mean |predicted / measured - 1|; `worst set`:
the largest of those means; `in interval`: runs whose step lies in the interval of 80 % that is made without their
publication. Everything is read from planner/validation/held_out.csv and unseen.csv.
"""

from __future__ import annotations

import numpy as np

from planner.validation.errors import HeldOut, errors_of_kind, held_out, unseen
from planner.validation.interval import coverage

KINDS = {False: "dense", True: "mixtures"}
GPUS = {
    "ampere": "A100", "hopper": "H100, H200, GH200", "blackwell": "B200, GB200", "blackwell-ultra": "B300, GB300",
    "volta": "V100", "ada": "A10, A40, L40S, RTX A6000", "geforce-4090": "RTX 4090", "geforce-5090": "RTX 5090",
    "blackwell-rtx": "RTX PRO 6000, GB10", "cdna2": "MI250X", "cdna3": "MI300X, MI325X", "cdna4": "MI355X",
}  # fmt: skip
BELIEVE = {
    (
        "ampere",
        False,
    ): "within 5 % with Megatron-LM or FSDP; 10 % with DeepSpeed's ZeRO-3, though two publications took "
    "1.4 to 2.8 times as long, and one trainer 2",
    (
        "hopper",
        False,
    ): "within 5 % with Megatron-Core, NeMo or FSDP; 12 % with torchtitan, OLMo-core or Pax; "
    "15 % on GH200; MaxText's 70B takes 8 to 20 % less; 20 % in fp8 outside NVIDIA's "
    "recipes; 28B on MareNostrum 5 1.2 times as long",
    ("blackwell", False): "within 10 %; torchtitan within 15 %; in bf16 two publications took 0.6 to "
    "0.85 times as long, on B200 of limited power 1.1 to 1.4",
    ("blackwell-ultra", False): "within 10 %, on AWS's 20 %; 8B in 4 bits took 0.8 times as long on four GPUs, "
    "1.4 times with unfused attention of 8,192 tokens",
    ("volta", False): "in a node within 15 %; over nodes within 30 %",
    ("ada", False): "L40S within 15 %; others take 1.1 to 1.3 times as long, "
    "a trainer of PyTorch's on A40, 70M, three times",
    ("geforce-4090", False): "within 10 %",
    ("geforce-5090", False): "by one trainer's own kernels: within 10 %",
    (
        "blackwell-rtx",
        False,
    ): "RTX PRO 6000: within 10 % by one trainer's own kernels, three times as long by another's "
    "page; GB10: 1.2 times as long",
    ("cdna2", False): "two publications: within 10 %",
    ("cdna3", False): "torchtitan and Primus within 20 %; fp8 by software of 2024: 1.2 to 1.9 times as long",
    (
        "cdna4",
        False,
    ): "Primus and NeMo within 15 %; Megatron-LM with dropout, and torchtitan not compiled: expect 1.1 to "
    "1.4 times as long",
    ("cdna3", True): "Primus: right to 23 % too fast",
    ("cdna4", True): "Primus with DeepEP took 0.9 times as long; with a kernel of its own in fp8 "
    "one took 1.6 times as long",
    ("ampere", True): "pre-training within 15 %; one fine-tuning took 2.3 times as long",
    (
        "hopper",
        True,
    ): "with Megatron within 25 %; on AWS 1.4 to 1.9 times as long; where a trainer pads experts 2.4 to 3.9; "
    "on real data up to 2.1",
    ("blackwell", True): "within 20 %",
    (
        "blackwell-ultra",
        True,
    ): "within 20 %; on AWS expect 1.1 to 1.2 times as long, with DeepEP up to 1.6, with Halo's groups of eight 1.25",
}
"""What the errors mean for somebody who plans a run; docs/accuracy-findings.md says why."""


def line(architecture: str, experts: bool, where: str, errors: HeldOut) -> str:
    rows = (errors.architecture == architecture) & (errors.experts == experts)
    if not rows.any():
        return ""
    judged = errors.where(np.flatnonzero(rows))
    off = np.abs(np.exp(-judged.error) - 1.0)
    sets = {str(s): off[judged.source == s].mean() for s in np.unique(judged.source)}
    worst = max(sets, key=lambda s: sets[s])
    inside = coverage(errors_of_kind(experts=experts), judged)
    held = f"{100 * np.nanmean(inside):.0f} %" if np.isfinite(inside).any() else "none made"
    return (
        f"| {GPUS[architecture]} | {KINDS[experts]} | {where} | {len(off)} in {len(sets)} | "
        f"{100 * np.mean(list(sets.values())):.1f} % | {100 * sets[worst]:.0f} % ({worst}) | {held} | "
        f"{BELIEVE[architecture, experts]} |"
    )


def main() -> None:
    print(
        "| GPUs | models | publication | runs, in sets | mean error | worst set | in interval | believe the step time |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for experts in KINDS:
        for architecture in GPUS:
            for where, errors in (("familiar", held_out()), ("new", unseen())):
                if row := line(architecture, experts, where, errors):
                    print(row)


if __name__ == "__main__":
    main()
