"""When a process that a test starts is taken to hang."""

HANG_S = 900  # seconds of wall time: no limit on how long it may take on a loaded machine
