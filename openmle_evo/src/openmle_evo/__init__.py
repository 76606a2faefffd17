"""Evolutionary search over machine-learning programs with four operators: draft, improve, debug, crossover."""

__version__ = "0.1.0"
