"""What a program's predictions are made of, read from its syntax tree.

A name's sources are the union over all its assignments, over all scopes, whatever the order; what decides whether an
assignment happens counts as its source too. Whatever is not understood counts as learnt, so that a program is called
out only where nothing but the sample submission, the test inputs, constants and random numbers can reach its output.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from openmle_gym.parsing import walk
from openmle_gym.review.syntax import Syntax, dotted, path_argument, root_name


class Source(StrEnum):
    """Where a value may come from."""

    LEARNT = "learnt"
    """Training data, a model, or anything that is not understood."""
    SAMPLE = "sample"
    TEST = "test"
    RANDOM = "random"


Sources = frozenset[Source]
NOTHING: Sources = frozenset()
LEARNT: Sources = frozenset({Source.LEARNT})

_PLAIN_MODULES = frozenset(
    [
        "numpy",
        "pandas",
        "os",
        "pathlib",
        "csv",
        "json",
        "math",
        "random",
        "secrets",
        "shutil",
        "sys",
        "io",
        "time",
        "itertools",
        "collections",
        "warnings",
        "typing",
        "functools",
        "re",
        "string",
        "statistics",
        "datetime",
        "operator",
    ]
)
_OPAQUE = frozenset({"eval", "exec", "compile", "__import__", "getattr", "globals", "locals", "vars", "input"})
_LISTING = frozenset({"os.listdir", "os.scandir", "os.walk", "os.popen", "os.system"})
_SHUFFLING = frozenset({"sample", "permutation", "permuted", "shuffle", "choice"})
_COPYING = frozenset({"shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move", "os.rename", "os.replace"})
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}
_ACTING = (ast.comprehension, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Call)
_STILL = (ast.Name, ast.Constant)
_BINDING = (
    ast.ClassDef,
    ast.Match,
    ast.AsyncFunctionDef,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.Lambda,
    ast.Name,
    ast.ExceptHandler,
)
_FILE = re.compile(r"\.\w{2,7}$|train|test|sample|submission", re.IGNORECASE)


class Predictions(NamedTuple):
    """What reaches the submission."""

    sources: Sources
    line: int
    """Of the first statement that writes it."""
    shuffles_sample: bool
    writes_constant: bool
    reads_more: bool
    """Whether the program reads anything beside the sample submission and the test inputs."""


def predictions(program: Syntax) -> Predictions | None:
    """What a program's submission is made of; None where it is not clear that, or where, one is written."""
    flow = _Flow(program)
    return flow.result() if flow.clear else None


class _Flow:
    def __init__(self, program: Syntax) -> None:
        self._imports = program.imports
        self._texts = program.texts
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._returns: dict[str, Sources] = {}
        self._names: dict[str, Sources] = {}
        self._same: list[tuple[str, str]] = []
        self._handles: dict[str, int] = {}
        self._sinks: dict[int, Sources] = {}
        self._function = ""
        self._acting = _Kept(_acting)
        self._children = _Kept(_child_expressions)
        self.clear = True
        self._shuffles_sample = self._writes_constant = self._reads_more = False
        self._collect(program.nodes)
        for _ in range(12):
            before = (dict(self._names), dict(self._returns), dict(self._sinks))
            self._block(program.tree.body, NOTHING)
            for one, other in self._same:
                both = self._names.get(one, NOTHING) | self._names.get(other, NOTHING)
                self._names[one] = self._names[other] = both
            if before == (self._names, self._returns, self._sinks):
                break
        else:
            self.clear = False

    def result(self) -> Predictions | None:
        for name, line in self._handles.items():
            self._sinks[line] = self._sinks.get(line, NOTHING) | self._names.get(name, NOTHING)
        if not self._sinks:
            return None
        return Predictions(
            sources=frozenset().union(*self._sinks.values()),
            line=min(self._sinks),
            shuffles_sample=self._shuffles_sample,
            writes_constant=self._writes_constant,
            reads_more=self._reads_more,
        )

    def _collect(self, nodes: Sequence[ast.AST]) -> None:
        methods: set[ast.AST] = set()
        for node in nodes:
            if not isinstance(node, _BINDING):
                continue
            match node:
                case ast.ClassDef(name=name, body=body):
                    self._names[name] = LEARNT
                    methods |= set(body)
                case ast.Match() | ast.AsyncFunctionDef():
                    self.clear = False
                case ast.ImportFrom(names=names) if any(alias.name == "*" for alias in names):
                    self.clear = False
                case ast.FunctionDef(name=name, args=args):
                    opaque = node in methods or bool(node.decorator_list) or name in self._functions
                    self._functions[name] = node
                    self._returns[name] = LEARNT if opaque else NOTHING
                    rest = [each for each in (args.vararg, args.kwarg) if each]
                    for each in [*_parameters(node), *rest]:
                        start = LEARNT if opaque or each in rest else NOTHING
                        self._names[each.arg] = self._names.get(each.arg, NOTHING) | start
                case ast.Lambda(args=args):
                    for each in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
                        self._names[each.arg] = LEARNT
                case ast.Name(id=name, ctx=ast.Store()):
                    self._names.setdefault(name, NOTHING)
                case ast.ExceptHandler(name=str(name)):
                    self._names[name] = LEARNT
                case _:
                    pass
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in self._functions]
        handed_on = {node.id for node in uses if id(node) not in called}
        for name in handed_on | (self._functions.keys() - {node.id for node in uses}):  # called with who knows what
            for each in _parameters(self._functions[name]):
                self._names[each.arg] = LEARNT

    def _block(self, statements: Sequence[ast.stmt], control: Sources) -> None:
        for statement in statements:
            self._statement(statement, control)

    def _statement(self, node: ast.stmt, control: Sources) -> None:
        self._effects(node, control)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, self._of(value) | control, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
                self._bind(target, self._of(value) | control, value)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                inner = control | self._of(iterated)
                self._bind(target, inner, iterated)
                self._block([*body, *orelse], inner)
            case ast.While(test=test, body=body, orelse=orelse) | ast.If(test=test, body=body, orelse=orelse):
                self._block([*body, *orelse], control | self._of(test))
            case ast.With(items=items, body=body):
                for item in items:
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, self._of(item.context_expr) | control, item.context_expr)
                self._block(body, control)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._block([*body, *orelse, *final], control)
                for handler in handlers:
                    self._block(handler.body, control)
            case ast.FunctionDef(name=name, body=body):
                outer, self._function = self._function, name
                self._block(body, control)
                self._function = outer
            case ast.ClassDef(body=body):
                self._block(body, control)
            case ast.Return(value=ast.expr() as value):
                self._returned(self._of(value) | control)
            case _:
                pass

    def _returned(self, sources: Sources) -> None:
        if self._function:
            self._returns[self._function] |= sources

    def _bind(self, target: ast.expr, sources: Sources, value: ast.expr) -> None:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, sources, value)
            case ast.Starred(value=inner):
                self._bind(inner, sources, value)
            case ast.Name(id=name):
                self._names[name] = self._names.get(name, NOTHING) | sources
                if isinstance(value, ast.Call):
                    self._handle(name, value)
            case ast.Subscript(slice=place):
                if name := root_name(target):
                    if not sources and self._names.get(name, NOTHING) & {Source.SAMPLE, Source.TEST}:
                        self._writes_constant = True
                    self._names[name] = self._names.get(name, NOTHING) | sources | self._of(place)
            case _:
                if name := root_name(target):
                    self._names[name] = self._names.get(name, NOTHING) | sources

    def _handle(self, name: str, call: ast.Call) -> None:
        """Remembers a file that is open for writing the submission, and who writes to it."""
        if self._writes_to(call):
            self._handles[name] = call.lineno
        wrapped = call.args[0] if call.args else None
        if dotted(call.func, self._imports) in ("csv.writer", "csv.DictWriter") and isinstance(wrapped, ast.Name):
            self._same.append((name, wrapped.id))

    def _writes_to(self, call: ast.Call) -> bool:
        """Whether a call opens the submission for writing."""
        return self._opens_for_writing(call) and self._writes_submission(_opened_path(call))

    def _writes_submission(self, path: ast.expr | None) -> bool:
        texts = [text for text in self._texts.of(path) if _FILE.search(text)] if path is not None else []
        if not texts:
            self.clear = False  # it might be the submission, or not
        return any("submission" in text.lower() and "sample" not in text.lower() for text in texts)

    def _opens_for_writing(self, call: ast.Call) -> bool:
        if dotted(call.func, self._imports) not in ("open", "io.open") and not (
            isinstance(call.func, ast.Attribute) and call.func.attr == "open"
        ):
            return False
        modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        texts = [each.value for each in modes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return any(re.fullmatch(r"[wax][bt+]*", text) for text in texts)

    def _effects(self, statement: ast.stmt, control: Sources) -> None:
        """What the calls inside a statement's expressions do to the names that they touch."""
        for node in self._acting.of(statement):
            if isinstance(node, ast.comprehension):
                self._bind(node.target, self._of(node.iter), node.iter)
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target, self._of(node.value) | control, node.value)
            elif isinstance(node, ast.Yield | ast.YieldFrom) and node.value is not None:
                self._returned(self._of(node.value) | control)
            elif isinstance(node, ast.Call):
                self._call_effects(node, control)

    def _call_effects(self, call: ast.Call, control: Sources) -> None:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        sources = control.union(*map(self._of, given))
        if isinstance(call.func, ast.Name) and call.func.id in self._functions:
            parameters = _parameters(self._functions[call.func.id])
            for each in parameters:
                self._names[each.arg] = self._names.get(each.arg, NOTHING) | sources
            back = frozenset[Source]().union(*(self._names[each.arg] for each in parameters))
            self._touch(given, back)
            return
        name = dotted(call.func, self._imports)
        if name.startswith(("random.", "numpy.random.")):
            self._shuffles_sample |= Source.SAMPLE in sources and name.rpartition(".")[2] in _SHUFFLING
            sources |= {Source.RANDOM}
        self._touch(given, sources)
        if isinstance(call.func, ast.Attribute):
            if (root := root_name(call.func)) in self._names:  # else it is imported, or a slip of the pen
                self._names[root] |= sources
            if call.func.attr in _SHUFFLING and Source.SAMPLE in self._of(call.func.value) | sources:
                self._shuffles_sample = True
            if call.func.attr in ("writerow", "writerows", "assign", "DataFrame", "insert"):
                self._writes_constant |= any(map(self._holds_constant, given))
        self._write(call, name, control)

    def _touch(self, given: Sequence[ast.expr], sources: Sources) -> None:
        for each in given:
            if (name := root_name(each)) and name in self._names:
                self._names[name] |= sources

    def _holds_constant(self, node: ast.expr) -> bool:
        if isinstance(node, ast.List | ast.Tuple):
            return any(map(self._holds_constant, node.elts))
        if isinstance(node, ast.Dict):
            return any(not self._of(value) for value in node.values)
        return isinstance(node, ast.Constant) and isinstance(node.value, int | float)

    def _write(self, call: ast.Call, name: str, control: Sources) -> None:
        """Notes what a call writes to the submission."""
        path = path_argument(call)
        if name in _COPYING and len(call.args) > 1:
            if self._writes_submission(call.args[1]):
                self._sink(call, self._file(call.args[0]) | control)
        elif name == "numpy.savetxt" and len(call.args) > 1:
            if self._writes_submission(path):
                self._sink(call, self._of(call.args[1]) | control)
        elif isinstance(call.func, ast.Attribute):
            method, value = call.func.attr, call.func.value
            if method.startswith("to_") and method[3:] in ("csv", "parquet", "json", "pickle", "excel", "feather"):
                if path is not None and self._writes_submission(path):
                    self._sink(call, self._of(value) | control)
            elif (method in ("write_text", "write_bytes") and call.args and self._writes_submission(value)) or (
                method == "write" and isinstance(value, ast.Call) and self._writes_to(value) and call.args
            ):
                self._sink(call, self._of(call.args[0]) | control)

    def _sink(self, call: ast.Call, sources: Sources) -> None:
        self._sinks[call.lineno] = self._sinks.get(call.lineno, NOTHING) | sources

    def _file(self, path: ast.expr | None) -> Sources:
        """The sources of a file's content, from its name."""
        texts = [text.lower() for text in self._texts.of(path) if _FILE.search(text)] if path is not None else []
        if texts and all("sample" in text for text in texts):
            return frozenset({Source.SAMPLE})
        if texts and all(re.search(r"(^|[/\\_-])test", text) and "train" not in text for text in texts):
            return frozenset({Source.TEST})
        self._reads_more = True
        return LEARNT

    def _of(self, node: ast.expr) -> Sources:
        match node:
            case ast.Constant():
                return NOTHING
            case ast.Name(id=name):
                return self._of_name(name)
            case ast.Call():
                return self._of_call(node)
            case ast.Lambda():
                return LEARNT
            case _:
                return frozenset[Source]().union(*map(self._of, self._children.of(node)))

    def _of_name(self, name: str) -> Sources:
        if name in self._names:
            return self._names[name]
        if name in self._functions:
            return self._returns[name]
        if name in self._imports:
            return NOTHING if self._imports[name].partition(".")[0] in _PLAIN_MODULES else LEARNT
        return NOTHING if name in _BUILTINS else LEARNT

    def _of_call(self, call: ast.Call) -> Sources:
        if isinstance(call.func, ast.Name) and call.func.id in self._functions:
            return self._returns[call.func.id]
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        sources = frozenset[Source]().union(*map(self._of, given))
        name = dotted(call.func, self._imports)
        if name in ("open", "io.open"):
            return NOTHING if self._opens_for_writing(call) else self._file(path_argument(call))
        if name.startswith("pandas.read_") or name in ("numpy.load", "numpy.loadtxt", "numpy.genfromtxt"):
            path = path_argument(call)
            if isinstance(path, ast.Name) and self._names.get(path.id):
                return self._names[path.id]
            return self._file(path)
        if name in _OPAQUE or name in _LISTING:
            return LEARNT
        if name.startswith(("random.", "numpy.random.", "secrets.")):
            return sources | {Source.RANDOM}
        if isinstance(call.func, ast.Attribute):
            method, value = call.func.attr, call.func.value
            if method in ("read_text", "read_bytes", "open"):
                return NOTHING if self._opens_for_writing(call) else self._file(value)
            if method in ("glob", "rglob", "iterdir"):
                return LEARNT
            random = {Source.RANDOM} if method in _SHUFFLING else NOTHING
            return sources | self._of(value) | random
        return sources | self._of(call.func)


class _Kept:
    """What a function finds in a node, found once: the rounds to the fixed point go through the same nodes."""

    def __init__(self, find: Callable[..., Iterable[Any]]) -> None:
        self._find = find
        self._found: dict[ast.AST, list[Any]] = {}

    def of(self, node: ast.AST) -> list[Any]:
        if (found := self._found.get(node)) is None:
            found = self._found[node] = list(self._find(node))
        return found


def _acting(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement's expressions that may change what a name holds, or what a function returns."""
    expressions = [each for each in _own_expressions(statement) if not isinstance(each, _STILL)]
    return [node for each in expressions for node in walk(each) if isinstance(node, _ACTING)]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _opened_path(call: ast.Call) -> ast.expr | None:
    is_method = isinstance(call.func, ast.Attribute) and root_name(call.func) != "io"
    return call.func.value if is_method and isinstance(call.func, ast.Attribute) else path_argument(call)


def _child_expressions(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif not isinstance(child, ast.stmt | ast.expr_context):
            yield from _child_expressions(child)


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of the statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem | ast.keyword):
            yield from _child_expressions(child)
