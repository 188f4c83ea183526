"""The report of a recommended plan as one HTML file that needs no network."""

from planner.report.html.page import html_page

__all__ = ["html_page"]
