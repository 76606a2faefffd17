"""A program's canonical form: equal for programs that do the same in other words. Pure; programs are parsed, never run.

Left out: comments, layout, docstrings, annotations, imports' order, unused imports, prints and logging (save the print
of the program's own score), silencing of warnings. Names that the program binds become numbers, in order of
appearance; imported names become what they stand for, so that a missing import is a difference.
"""

import ast
import warnings
from functools import lru_cache

SCORE_PHRASE = "Final Validation Score"
_SEED_NAMES = frozenset({"seed", "random_state", "random_seed", "rng_seed", "seed_everything", "manual_seed"})
_SEEDING_CALLS = frozenset(
    {"seed", "manual_seed", "default_rng", "RandomState", "Random", "set_seed", "seed_everything"}
)
_LOGGERS = frozenset({"logging", "logger", "log", "LOGGER"})


DEEPEST = 100
"""Levels of a syntax tree that is worked on. Walking takes several of Python's frames a level, of which there are 1000,
and a reply that repeats itself (`1 + 1 + 1 + ...`) nests as deep as it is long."""


def parse(source: str) -> ast.Module | None:
    """The syntax tree; None when this process's Python cannot parse the source, or it is nested too deep."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    return None


@lru_cache(maxsize=4096)
def canonical(source: str, *, mask_seeds: bool = False, mask_numbers: bool = False) -> str:
    """The canonical form as text; for a program that `parse` refuses, its lines without blanks and whole-line comments.

    Args:
        mask_seeds: Random seeds count as equal.
        mask_numbers: All numbers count as equal.
    """
    tree = parse(source)
    if tree is None:
        lines = (line.strip() for line in source.splitlines())
        return "\n".join(line for line in lines if line and not line.startswith("#"))
    if mask_seeds:
        tree = ast.fix_missing_locations(_MaskSeeds().visit(tree))
    if mask_numbers:
        tree = ast.fix_missing_locations(_MaskNumbers().visit(tree))
    return ast.dump(plain_tree(tree, numbered=True))


def plain_tree(tree: ast.Module, *, numbered: bool) -> ast.Module:
    """The tree with all that does not matter left out or made equal; the tree itself is changed.

    Args:
        numbered: Bound names get numbers; otherwise all become the same name, for comparing single statements.
    """
    names = _Names(tree)
    return ast.fix_missing_locations(_Plain(names, numbered).visit(tree))


class _Names:
    """What the names of a program stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}
        self.bound: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        self.imported[alias.asname or alias.name.split(".")[0]] = (
                            alias.name if alias.asname else alias.name.split(".")[0]
                        )
                case ast.ImportFrom(module=module, names=aliases):
                    for alias in aliases:
                        self.imported[alias.asname or alias.name] = f"{module or ''}.{alias.name}"
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    self.bound.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    self.bound.add(name)
        self.bound -= set(self.imported)


class _Plain(ast.NodeTransformer):
    def __init__(self, names: _Names, numbered: bool) -> None:
        self._names = names
        self._numbered = numbered
        self._numbers: dict[str, str] = {}

    def _name(self, name: str) -> str:
        if name in self._names.imported:
            return f"<{self._names.imported[name]}>"
        if name not in self._names.bound:
            return name
        return self._numbers.setdefault(name, f"_{len(self._numbers)}") if self._numbered else "_"

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(id=self._name(node.id), ctx=node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg(arg=self._name(node.arg), annotation=None), node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.generic_visit(ast.copy_location(plain, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or _only_talks(node.value):
            return None
        return self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def _definition(self, node: "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef") -> ast.AST:
        node.name = self._name(node.name)
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.name:
            node.name = self._name(node.name)
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not body and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
        return node


def _only_talks(node: ast.expr) -> bool:
    """Whether an expression prints, logs or silences warnings, and does nothing else."""
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Name(id="print"):
            return SCORE_PHRASE not in ast.unparse(node)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            silences = name == "warnings" and attribute in ("filterwarnings", "simplefilter")
            return silences or (name in _LOGGERS and attribute != "raiseExceptions")
    return False


class _MaskSeeds(ast.NodeTransformer):
    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg in _SEED_NAMES and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(value=0)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _SEEDING_CALLS:
            node.args = [ast.Constant(value=0) if isinstance(each, ast.Constant) else each for each in node.args]
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        targets = [target.id.lower() for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node.value, ast.Constant) and any(name in _SEED_NAMES for name in targets):
            node.value = ast.Constant(value=0)
        return self.generic_visit(node)


class _MaskNumbers(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return ast.copy_location(ast.Constant(value=0), node) if is_number else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        is_number = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return node.operand if is_number else node
