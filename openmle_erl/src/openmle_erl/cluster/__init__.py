"""Trainers and rollout engines on the nodes of a Ray cluster. Only `ranks`, `rollouts` and `running` need Ray."""
