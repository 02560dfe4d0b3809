"""Screens: tables, boards and pages from the dataclasses of the lower layers."""
