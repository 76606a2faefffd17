"""A program as a bag of units, its statements and its calls, and what one program passes on to another. Pure."""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from openmle_erl.sft.canonical import parse, plain_tree


class Unit(NamedTuple):
    """A statement without its inner block, or a call, in a form that does not depend on the program's own names."""

    kind: str
    """`line` or `call`."""
    text: str


Units = Counter[Unit]


def units_of(sources: Sequence[str]) -> list[Units]:
    """The units of programs that are to be compared.

    Where `parse` refuses one of them, all are taken by their lines of text, so that like is compared with like.
    """
    trees = [parse(source) for source in sources]
    if any(tree is None for tree in trees):
        return [_text_units(source) for source in sources]
    return [Counter(_tree_units(plain_tree(tree, numbered=False))) for tree in trees if tree is not None]


def _text_units(source: str) -> Units:
    lines = (" ".join(line.split("#")[0].split()) for line in source.splitlines())
    return Counter(Unit("line", line) for line in lines if line)


def _tree_units(tree: ast.Module) -> Iterator[Unit]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Pass):
            yield Unit("line", _head(node))
        elif isinstance(node, ast.Call):
            yield Unit("call", ast.unparse(node))


def _head(node: ast.stmt) -> str:
    """The statement; of a compound one, what stands before its block."""
    match node:
        case ast.If(test=test):
            return f"if {ast.unparse(test)}"
        case ast.While(test=test):
            return f"while {ast.unparse(test)}"
        case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
            return f"for {ast.unparse(target)} in {ast.unparse(source)}"
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return f"with {', '.join(ast.unparse(item) for item in items)}"
        case ast.Try() | ast.TryStar():
            return "try " + ", ".join(ast.unparse(each.type) if each.type else "all" for each in node.handlers)
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            return f"def ({ast.unparse(arguments)})"
        case ast.ClassDef(bases=bases):
            return f"class ({', '.join(ast.unparse(base) for base in bases)})"
        case ast.Match(subject=subject):
            return f"match {ast.unparse(subject)}"
    return ast.unparse(node)
