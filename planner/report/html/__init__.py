"""The report of a recommended plan as one HTML file that needs no network."""
