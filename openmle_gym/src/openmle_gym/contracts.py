"""The base of every record that crosses a process or a disk."""

from pydantic import BaseModel, ConfigDict


class Contract(BaseModel):
    """A frozen record of ours; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ForeignContract(BaseModel):
    """A frozen record that others also write; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)
