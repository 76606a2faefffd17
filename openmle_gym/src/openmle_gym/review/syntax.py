"""What several detectors ask of a syntax tree: full names, paths, and the texts that an expression is made of."""

import ast
from collections.abc import Sequence

from openmle_gym.parsing import nodes_of, walk


def dotted(node: ast.expr, imports: dict[str, str]) -> str:
    """`np.random.shuffle` as `numpy.random.shuffle`; empty where it is not a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([imports.get(node.id, node.id), *reversed(parts)])


def imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """The names that imports bind, and what they stand for."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def path_argument(call: ast.Call) -> ast.expr | None:
    """The first argument, or one with a usual name for a path."""
    if call.args:
        return call.args[0]
    usual = ("filepath_or_buffer", "path_or_buf", "path", "file", "fname")
    return next((keyword.value for keyword in call.keywords if keyword.arg in usual), None)


def root_name(node: ast.expr) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class Texts:
    """The string constants that an expression is put together from, through the names that it uses."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if isinstance(target, ast.Name):
                            self._assigned.setdefault(target.id, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned.setdefault(name, []).append(value)
                case _:
                    pass

    def of(self, node: ast.expr, depth: int = 4) -> list[str]:
        """In no particular order; empty where there is none."""
        found: list[str] = []
        for each in walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.append(each.value)
            elif isinstance(each, ast.Name) and depth:
                for value in self._assigned.get(each.id, ()):
                    found += self.of(value, depth - 1)
        return found


class Syntax:
    """A program's tree, walked once."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = nodes_of(tree)
        """Outer ones before those inside them."""
        self.imports = imported(self.nodes)
        self.texts = Texts(self.nodes)
