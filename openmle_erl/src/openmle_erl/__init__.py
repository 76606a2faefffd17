"""Rewards, advantages and training for the four operators: what turns executed programs into a better policy."""

__version__ = "0.1.0"
