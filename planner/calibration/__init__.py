"""Hardware profiles from measurements: of this machine's passes, or of training runs on GPUs."""
