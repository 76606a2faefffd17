"""NatureBench: programs run here, isolated; their outputs are scored by the benchmark's own evaluation service.

The service is asked from this process alone. A program gets the task's `problem/data` and a folder to write into: no
address of the service, no network to ask it over, and nothing of the task's `evaluation` folder.
"""
