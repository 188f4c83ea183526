"""Relations between a step and the same step with one thing changed, on drawn layouts: those that don't hold.

python benchmarks/metamorphic.py --cases 20000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.metamorphic.cases import drawn
from tests.metamorphic.relations import RELATIONS


def main() -> int:
    """Check so many cases, each with one relation in turn; 1 where some relation does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--relation", choices=RELATIONS, help="This one alone.")
    parser.add_argument("--show", type=int, default=5, help="Cases shown of each relation.")
    given = parser.parse_args()
    names = [given.relation] if given.relation else list(RELATIONS)
    held, idle, wrong = dict.fromkeys(names, 0), dict.fromkeys(names, 0), {name: [] for name in names}
    begin = time.process_time()
    for i in range(given.cases):
        name, seed = names[i % len(names)], given.seed * 1_000_000_007 + i
        case = drawn(seed)
        found = RELATIONS[name](case)
        if found:
            wrong[name].append(f"seed {seed}, {case}\n      {found}")
        else:
            (idle if found is None else held)[name] += 1
    print(f"{given.cases} cases, seed {given.seed}, {time.process_time() - begin:.0f} s of the processor")
    for name in names:
        print(f"{name:50} held {held[name]:6}  nothing to change {idle[name]:6}  wrong {len(wrong[name]):6}")
        for text in wrong[name][: given.show]:
            print("   ", text)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
