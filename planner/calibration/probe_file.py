"""The script that probes a machine, and the file that it writes."""

from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from planner.base.errors import FileFormatError
from planner.base.files import read_json, validate


class Row(BaseModel):
    """One figure of a probe: what ran, its sizes, its median seconds."""

    kind: str = Field("", max_length=100)
    precision: str = Field("", max_length=10)
    kernel: str = Field("", max_length=100)
    rows: int = Field(1, gt=0, le=10**9)
    columns: int = Field(1, gt=0, le=10**9)
    depth: int = Field(1, gt=0, le=10**9)
    heads: int = Field(1, gt=0, le=10**6)
    width: int = Field(1, gt=0, le=10**6)
    length: int = Field(1, gt=0, le=10**9)
    bytes: int = Field(1, gt=0, le=10**15)
    ranks: int = Field(1, gt=0, le=10**7)
    local: int = Field(1, gt=0, le=10**7)
    stride: int = Field(1, gt=0, le=10**7)
    rank: int = Field(0, ge=0, le=10**7)
    host: str = Field("", max_length=200)
    seconds: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    spread: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    slower: float = Field(0.0, ge=-1, le=1e9, allow_inf_nan=False)
    missing: str = Field("", max_length=300)


FORMAT: Literal["planner probe 1"] = "planner probe 1"


class Machine(BaseModel):
    """The machine that a probe ran on."""

    device: Literal["cpu", "cuda"]
    name: str = Field(max_length=200)
    torch: str = Field(max_length=100)
    threads: int = Field(1, gt=0, le=10**5)
    memory_bytes: int | None = Field(None, gt=2**27, le=10**15)
    local_world: int = Field(1, gt=0, le=10**5)


class Probe(BaseModel):
    """A probe's file; sections that it didn't come to are empty."""

    format: Literal["planner probe 1"] = FORMAT
    machine: Machine
    launch: list[Row] = []
    host: list[Row] = []
    products: list[Row] = []
    attention: list[Row] = []
    memory: list[Row] = []
    collectives: list[Row] = []
    experts: list[Row] = []
    groups: list[Row] = []
    overlap: list[Row] = []
    ranks: list[Row] = []


def probe_script() -> str:
    """The text of the file that measures a machine; it needs torch alone."""
    return (resources.files("planner.calibration") / "probe_script.py").read_text(encoding="utf-8")


def read_probe(path: Path) -> Probe:
    """A probe's file. Raises FileFormatError if it can't be read, or is none."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileFormatError(f"{path}: is no probe's file; allowed: what probe.py writes (planner probe)")
    return validate(Probe, data, path)
