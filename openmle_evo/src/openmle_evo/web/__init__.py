"""Runs in a browser, as they go: a small server on this machine that reads run directories and changes nothing."""

from openmle_evo.web.server import serve

__all__ = ["serve"]
