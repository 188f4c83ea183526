"""`planner serve`: the questions of `planner recommend` asked in a browser. It needs the extra `serve`."""
