"""A job service that runs untrusted machine-learning programs and grades them on hidden answers."""

__version__ = "0.1.0"
