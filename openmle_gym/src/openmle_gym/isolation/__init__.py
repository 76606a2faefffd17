"""Run a command with these files, limits and environment, and say truthfully how it ended."""
