"""Hardware profiles from measurements: of training runs, or of a probe of a machine; answers anchored on a few runs."""
