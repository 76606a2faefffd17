"""Every exception that OpenMLE raises on purpose.

    OpenMLEError
    ├── ConfigError              a setting is misspelt, mistyped or out of range
    ├── PackageError             a task package cannot be used; names the path
    ├── ReplyError               a model's reply holds no program (`code`: no_code, truncated_reply)
    ├── StoreError               a store is damaged, or belongs to something else
    └── InfrastructureError      machinery failed; retry, never score
        ├── RunnerUnavailable    the isolation cannot start anything (engine down, binary missing)
        ├── ExecutorUnavailable  the sandbox service cannot be reached, or refuses work
        ├── JobLost              the service gave a job up for reasons that are not the program's
        ├── JobCancelled         somebody cancelled the job
        └── ModelUnavailable     the model's endpoint cannot be reached, or refuses work

A failing *program* is a value (`openmle_gym.jobs.Outcome`), not an exception.
"""

from typing import Literal


class OpenMLEError(Exception):
    """Base of all; a command that ends with one exits with its `exit_code`."""

    exit_code = 1


class ConfigError(OpenMLEError):
    """A setting is misspelt, mistyped or out of range; the message names the field."""

    exit_code = 2


class PackageError(OpenMLEError):
    """A task package cannot be used; the message names the path."""


ReplyErrorCode = Literal["no_code", "truncated_reply"]


class ReplyError(OpenMLEError):
    """A model's reply holds no program."""

    def __init__(self, code: ReplyErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ReplyErrorCode = code


class StoreError(OpenMLEError):
    """A store is damaged, or belongs to something else."""


class InfrastructureError(OpenMLEError):
    """Machinery failed. Retry or stop; never a score, a reward or a Debug prompt."""

    exit_code = 3


class RunnerUnavailable(InfrastructureError):
    """The isolation cannot start anything: the engine is down, the binary or image is missing."""


class ExecutorUnavailable(InfrastructureError):
    """The sandbox service cannot be reached, or refuses work."""


class JobLost(InfrastructureError):
    """The service gave a job up for reasons that are not the program's."""


class JobCancelled(InfrastructureError):
    """Somebody cancelled the job."""


class ModelUnavailable(InfrastructureError):
    """The model's endpoint cannot be reached, or refuses work."""
