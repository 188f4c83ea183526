"""What can be chosen of a layout, each thing declared once: a choice is a row, and all lists of choices come from it.

`choice` says what a row holds, `enumerations` the choices that are one of several words. The rows themselves stand on
the columns of `planner.layouts.Layouts`.
"""
