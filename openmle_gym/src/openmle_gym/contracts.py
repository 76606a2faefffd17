"""The base of every record that crosses a process or a disk."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from openmle_gym.errors import StoreError

Record = TypeVar("Record", bound=BaseModel)


class Contract(BaseModel):
    """A frozen record of ours; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ForeignContract(BaseModel):
    """A frozen record that others also write; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


def one_line(error: Exception) -> str:
    """What is wrong, in one line: of a record that does not hold, field by field."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in error.errors())


def read_record(path: Path, kind: type[Record]) -> Record:
    """A record that was written to a file as JSON.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: It cannot be read, or holds no such record.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise StoreError(f"{path}: {one_line(error)}") from error
