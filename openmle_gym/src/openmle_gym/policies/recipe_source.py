"""Bits of Python source: calls that import what they call, literals, line breaks."""

import json
from collections.abc import Iterable

from openmle_gym.policies.recipe_settings import Value

_WIDTH = 100
_STANDARD_LIBRARY = ("itertools", "pathlib", "struct", "zlib")


class Imports:
    """What a program imports beside `os`, `warnings`, numpy and pandas."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def name(self, path: str) -> str:
        """The bare name of what is at a path such as `sklearn.svm.SVC`, imported."""
        self._paths.add(path)
        return path.rpartition(".")[2]

    def call(self, path: str, arguments: Iterable[str] = ()) -> str:
        """A call of what is at a path, imported."""
        return call(self.name(path), arguments)

    def render(self) -> str:
        """The import statements, sorted."""
        by_module: dict[str, list[str]] = {}
        for path in sorted(self._paths):
            module, _, name = path.rpartition(".")
            by_module.setdefault(module, []).append(name)
        lines = {module: f"from {module} import {', '.join(names)}" for module, names in sorted(by_module.items())}
        standard = [line for module, line in lines.items() if module in _STANDARD_LIBRARY]
        others = [line for module, line in lines.items() if module not in _STANDARD_LIBRARY]
        return "\n".join(
            ["import os", "import warnings", *standard, "", "import numpy as np", "import pandas as pd", *others]
        )


def call(name: str, arguments: Iterable[str]) -> str:
    """A call, on one line when it is short."""
    arguments = list(arguments)
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    return f"{name}(\n" + "".join(f"    {indented(argument)},\n" for argument in arguments) + ")"


def indented(text: str) -> str:
    """The text with its lines after the first indented by one level."""
    return text.replace("\n", "\n    ")


def literal(value: Value) -> str:
    """A value as Python writes it, with double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def literals(values: Iterable[str]) -> str:
    """A list of texts."""
    return "[" + ", ".join(map(literal, values)) + "]"
