"""A layout's choices are declared once each: a choice is a row, and all lists of choices come from it.

`choice` says what a row holds, `enumerations` the choices that are one of several words. The rows themselves stand on
the columns of `planner.layouts.Layouts`.
"""
