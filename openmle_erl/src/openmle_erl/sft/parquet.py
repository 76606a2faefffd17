"""The corpus as Parquet: `id` and `messages`, in row groups, written as examples come. Needs pyarrow."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openmle_gym.errors import ConfigError

from openmle_erl.sft.corpus import Example

ROW_GROUP = 1000


class ParquetFile:
    """A file that is there under its name once it is closed without an error."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa  # pyright: ignore[reportMissingImports]
            import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError("parquet: needs pyarrow: pip install pyarrow") from error
        message = pa.struct([("role", pa.string()), ("content", pa.string())])
        self._schema = pa.schema([("id", pa.string()), ("messages", pa.list_(message))])
        self._table = pa.Table
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._writer: Any = pq.ParquetWriter(self._partial, self._schema, compression="zstd")
        self._rows: list[dict[str, object]] = []

    def add(self, example: Example) -> None:
        """Adds a row."""
        self._rows.append(example.model_dump(mode="json"))
        if len(self._rows) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is None:
            self._partial.replace(self._path)
