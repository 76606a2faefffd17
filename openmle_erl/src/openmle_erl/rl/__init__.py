"""Reinforcement learning of the four operators: `train` reads from top to bottom as the story of one step."""
