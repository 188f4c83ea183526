"""Writes tests/export/pytorch/: PyTorch's own schedules in its own compute_only form, p = 4, m = 8, v = 2.

python -m tests.export.dump_pytorch_orders   (with '.[torch]'; the files there are torch 2.13.0's, lines ended by \\n)
"""

from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent / "pytorch"
RANKS, MICRO_BATCHES = 4, 8
STYLES = {
    "Interleaved1F1B": "loop",
    "LoopedBFS": "loop",
    "InterleavedZeroBubble": "loop",
    "ZBVZeroBubble": "v",
    "DualPipeV": "v",
}


def main() -> None:
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

    for name, style in STYLES.items():
        held = generate_rank_to_stage_mapping(RANKS, 2 * RANKS, style)[0]
        common = {"num_stages": 2 * RANKS, "group_size": RANKS, "group_rank": 0, "has_backward": True}
        stages = [SimpleNamespace(stage_index=s, is_first=s == 0, is_last=False, submod=None, **common) for s in held]
        schedule = getattr(schedules, f"Schedule{name}")(stages, MICRO_BATCHES, loss_fn=lambda *_: None)
        path = FOLDER / f"{name}.csv"
        schedule._dump_csv(str(path), format="compute_only")
        path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))


if __name__ == "__main__":
    main()
