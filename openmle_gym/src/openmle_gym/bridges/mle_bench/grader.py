"""Packs a competition's own grader into a `metric.py`: its modules' sources as text, run only where metrics run."""

import ast
from importlib import resources
from pathlib import Path

from openmle_gym.bridges.mle_bench.competition import Competition
from openmle_gym.errors import PackageError
from openmle_gym.manifest import Columns

_STAND_INS = {
    "mlebench": "",
    "mlebench.competitions": "",
    "mlebench.grade_helpers": "class InvalidSubmissionError(Exception):\n    pass\n",
    "mlebench.utils": (
        "import logging\n\nimport pandas as pd\n\n\n"
        "def get_logger(name, *args, **kwargs):\n    return logging.getLogger(name)\n\n\n"
        "def read_csv(*args, **kwargs):\n    return pd.read_csv(*args, **{'float_precision': 'round_trip', **kwargs})\n"
    ),
}
"""In place of modules that import what no grader needs."""


def grader_module(competition: Competition, columns: Columns, *, order: list[str], added: list[str]) -> str:
    """The text of a `metric.py` that calls the official grader.

    Args:
        order: The submission's columns as the official sample has them, which some graders rely on.
        added: Columns of the answers that are not the grader's.

    Raises:
        PackageError: A module of the grader is missing.
    """
    template = resources.files("openmle_gym.bridges.mle_bench").joinpath("metric_module.txt").read_text("utf-8")
    return template.format(
        competition=competition.facts.id,
        grade=competition.grade_function,
        submission_columns=order,
        added_columns=added,
        sources=_sources(competition),
        value=columns.target[0],
        higher=competition.facts.higher_is_better,
    )


def _sources(competition: Competition) -> dict[str, str]:
    """The modules that the grader imports, itself included, by name."""
    root = competition.folder.parents[2]
    package = f"mlebench.competitions.{competition.facts.id}"
    found = {**_STAND_INS, package: ""}
    wanted = [competition.grade_function.partition(":")[0]]
    while wanted:
        name = wanted.pop()
        if name in found or not name.startswith("mlebench."):
            continue
        path = root / Path(*name.split(".")).with_suffix(".py")
        if not path.is_file():
            raise PackageError(f"{path}: no such file, and the grader needs it")
        found[name] = path.read_text(encoding="utf-8")
        wanted += _imported(found[name], name.rpartition(".")[0], path)
    return found


def _imported(source: str, package: str, path: Path) -> list[str]:
    """The modules that a module imports by their names, relative ones resolved."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise PackageError(f"{path}: {error}") from error
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package if node.level == 1 else package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [module] if node.module else [f"{module}.{alias.name}" for alias in node.names]
    return names
