"""The base of every record that crosses a process or a disk."""

from pydantic import BaseModel, ConfigDict, ValidationError


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
