"""A program's syntax tree, parsed and walked once however many ask for it."""

import ast
import warnings
from functools import lru_cache
from typing import NamedTuple

KEPT = 16
"""Trees of so many programs are kept: those that are being judged."""


class Parsed(NamedTuple):
    """A syntax tree, which nobody may change, or why there is none."""

    tree: ast.Module | None
    error: str | None
    line: int | None = None
    """Where Python cannot read on, counted from 1."""


@lru_cache(maxsize=KEPT)
def parse_source(source: str) -> Parsed:
    """Parses a program as this process's Python reads it; its warnings are kept quiet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Parsed(ast.parse(source), None)
    except SyntaxError as error:
        return Parsed(None, f"line {error.lineno}: {error.msg}" if error.lineno else error.msg, error.lineno)
    except (ValueError, RecursionError, MemoryError) as error:
        return Parsed(None, f"{type(error).__name__}: {error}")


@lru_cache(maxsize=KEPT)
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a program, outer ones before those inside them; see `walk`."""
    return tuple(walk(tree))


def walk(node: ast.AST) -> list[ast.AST]:
    """As `ast.walk`, in the same order and faster; expression contexts (`Load`, `Store`, `Del`) are left out."""
    nodes = [node]
    for each in nodes:  # grows while it is gone through
        for name in each._fields:
            if name == "ctx":
                continue
            value = getattr(each, name, None)
            if isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes
