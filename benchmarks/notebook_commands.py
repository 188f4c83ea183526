"""Every command that a notebook prints under a figure, run: whether it still gives the points beside it.

    python benchmarks/notebook_commands.py             # all of them, some two minutes of processor time
    python benchmarks/notebook_commands.py --only gb200

Exits 1 if one differs, and prints both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.notebooks.printed import answered, every


def main() -> None:
    """Run them."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", default="", help="commands that hold this text")
    only = options.parse_args().only
    asked = [one for one in every() if only in one[1]]
    differ = points = 0
    for path, command, lines in asked:
        start = time.process_time()
        now = answered(command)
        wrong = [(then, new) for then, new in zip(lines, now, strict=False) if then != new]
        bad = bool(wrong) or len(lines) != len(now)
        points, differ = points + len(lines), differ + bad
        print(f"{'differs' if bad else 'as printed'}  {time.process_time() - start:5.1f} s  {path.stem[:2]}  {command}")
        for then, new in wrong:
            print(f"    printed {then}\n    now     {new}")
        sys.stdout.flush()
    print(f"{len(asked) - differ} of {len(asked)} commands give what is printed under them ({points} points)")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
