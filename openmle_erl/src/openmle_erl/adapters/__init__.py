"""The reward library inside training frameworks: one module for each, imported by name, none of them here.

trl       a `GRPOTrainer` for GRPO and GSPO
verl      advantage estimators, registered on import
skyrl     likewise
slime     a function for `--custom-reward-post-process-path`
prime_rl  advantages for the traces of a group
"""
