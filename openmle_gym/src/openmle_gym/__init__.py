"""Executable machine-learning-engineering tasks, and the contracts that OpenMLE's layers share.

Importing this package imports nothing heavy; take what you need from its modules.
"""

__version__ = "0.1.0"
