"""Write today's deviation of every claim, which the tests hold: python -m tests.reproductions.write_deviations"""

import csv
from pathlib import Path

from planner.reproductions import reproduce_all

FILE = Path(__file__).with_name("deviations.csv")


def main() -> None:
    with FILE.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["paper", "sentence", "verdict", "deviation"])
        for done in reproduce_all():
            for o in done.outcomes:
                off = "" if o.deviation is None else f"{o.deviation:.4f}"
                rows.writerow([done.paper.name, o.claim.sentence, o.verdict, off])


if __name__ == "__main__":
    main()
