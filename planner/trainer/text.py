"""Training text as bytes, so that every file will do and the vocabulary is 256.

By default the sources of this Python's standard library, which every machine has. Shapes: n bytes of text,
m micro-batches of b sequences of S tokens.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.errors import InputError
from planner.base.files import read_bytes
from planner.trainer.executor import Batch

VOCAB = 256
DEFAULT_BYTES = 8_000_000
MOST_BYTES = 256 * 2**20
"""Most bytes of a text that is read: far more than a small run can see, well under a machine's memory."""


def load_text(path: Path | None) -> Any:
    """The text as integers, shape (n,), uint8.

    Raises FileFormatError if the file can't be read, or is larger than `MOST_BYTES`.
    """
    if path is not None:
        return np.frombuffer(read_bytes(path, MOST_BYTES), dtype=np.uint8)
    parts: list[bytes] = []
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts.append(source.read_bytes())
        if sum(map(len, parts)) > DEFAULT_BYTES:
            break
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Sequences at random places of the text. Which ones depends on seed and step alone, not on the layout."""

    text: Any
    seq_len: int
    micro_batch: int
    micro_batches: int
    dp: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.text) <= self.seq_len + 1:
            raise InputError(f"text has {len(self.text)} bytes; needed: over {self.seq_len + 1}, a sequence's")

    @property
    def sequences(self) -> int:
        """Sequences of a step, all replicas together."""
        return self.micro_batch * self.micro_batches * self.dp

    def fingerprint(self) -> dict[str, Any]:
        """The facts that two runs must share to see the same sequences at each step."""
        digest = hashlib.sha256(np.asarray(self.text).tobytes()).hexdigest()
        sizes = {"micro_batch": self.micro_batch, "micro_batches": self.micro_batches, "data_seed": self.seed}
        return {"text": digest, "seq_len": self.seq_len, **sizes}

    def batch(self, xp: Any, step: int, d: int) -> Batch:
        """Replica d's micro-batches of a step."""
        generator = np.random.default_rng([self.seed, step])
        starts = generator.integers(0, len(self.text) - self.seq_len - 1, self.sequences)
        mine = starts.reshape(self.dp, self.micro_batches, self.micro_batch)[d]
        tokens = self.text[mine[..., None] + np.arange(self.seq_len + 1)].astype(np.int64)
        num_tokens = self.sequences * self.seq_len
        return Batch(tokens=xp.asarray(tokens[..., :-1]), targets=xp.asarray(tokens[..., 1:]), num_tokens=num_tokens)
