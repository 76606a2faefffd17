"""Suites of runs over many tasks: what they are worth, and whether two of them differ."""
