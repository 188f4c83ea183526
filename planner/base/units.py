"""SI constants, and numbers from and for people. Inside the package everything is seconds, bytes, FLOP, bytes/s."""

from typing import TypeVar

KIB = 1024.0
MIB = 1024.0**2
GIB = 1024.0**3
MICRO = 1e-6
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
GBIT = 1e9 / 8  # bytes in 1 Gb
MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
MONTH = 365.25 / 12 * DAY
KWH = 3.6e6  # joules


COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


N = TypeVar("N", int, float)


def parse_number(text: str, kind: type[N]) -> N:
    """A number in a text, ``parse_number("64", int) == 64``; Python alone reads "6_4" so too.

    Raises ValueError if it is none.
    """
    if "_" in text:
        raise ValueError(text)
    return kind(text)


def parse_count(text: str) -> float:
    """A number as people write it: ``parse_count("15T") == parse_count("15e12")``; K, M and B likewise.

    Raises ValueError if it is no number.
    """
    number, unit = text.strip(), 1.0
    if number[-1:].lower() in COUNTS:
        number, unit = number[:-1], COUNTS[number[-1].lower()]
    return parse_number(number, float) * unit


def parse_length(text: str) -> int:
    """Tokens of a sequence as people write them: ``parse_length("128k") == 131072``, for a thousand is 1,024 there.

    ``parse_length("1M")`` is 1,024 thousands. Raises ValueError if the text is no whole number.
    """
    word = text.strip()
    thousands = {"k": 1024, "m": 1024**2}.get(word[-1:].lower())
    return parse_number(word if thousands is None else word[:-1], int) * (thousands or 1)


def counted(number: int, thing: str) -> str:
    """``counted(1, "sequence") == "1 sequence"``, ``counted(4096, "micro-batch") == "4,096 micro-batches"``."""
    many = "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{many * (number != 1)}"


def gpus_text(gpus: int) -> str:
    """``gpus_text(1) == "1 GPU"``, ``gpus_text(4096) == "4,096 GPUs"``."""
    return counted(gpus, "GPU")


def few_digits(value: float) -> str:
    """Three digits, or all before the point: ``few_digits(1543.2) == "1,543"``, ``few_digits(56.64) == "56.6"``."""
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_bytes(size_bytes: float) -> str:
    """Bytes as GiB, MiB below a tenth of one, KiB below a tenth of that: ``format_bytes(2**30) == "1.00 GiB"``."""
    if 0.0 < abs(size_bytes) < 0.1 * MIB:
        return f"{size_bytes / KIB:.1f} KiB"
    if abs(size_bytes) < 0.1 * GIB:
        return f"{size_bytes / MIB:.1f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"


def format_seconds(time_s: float) -> str:
    """A duration in the unit a person would say: ``format_seconds(90) == "90.00 s"``, then min, h and days."""
    if time_s < 1e-3:
        return f"{time_s * 1e6:.1f} us"
    if time_s < 1.0:
        return f"{time_s * 1e3:.1f} ms"
    if time_s < 20 * MINUTE:
        return f"{time_s:.2f} s"
    if time_s < HOUR:
        return f"{time_s / MINUTE:.1f} min"
    if time_s < 2 * DAY:
        return f"{time_s / HOUR:.1f} h"
    return f"{time_s / DAY:,.1f} days"


def format_span(low_s: float, high_s: float) -> str:
    """``format_span(3600.0, 7200.0) == "1.0 to 2.0 h"``: the unit once where both have the same."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"
