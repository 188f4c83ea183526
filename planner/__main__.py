"""`python -m planner`: the same commands as the `planner` script."""

from planner.cli import main

if __name__ == "__main__":
    main()
