"""What a sweep found, for a terminal."""
