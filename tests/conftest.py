"""Property tests draw the same examples each time, and no example fails for being slow."""

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
