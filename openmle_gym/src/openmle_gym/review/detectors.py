"""The deterministic detectors: what a program that goes for a score instead of learning looks like in its syntax tree.

    reads_answers        names the hidden answers, the private folder, or another process's memory or environment
    reads_outside        reads a parent folder of the data, or an absolute path that is no place for data
    reads_metric         reads the task's metric, or imports this project
    loads_known_data     loads a public data set by name instead of the task's files
    uses_network         asks the network, or has another program ask it
    hard_coded           holds hundreds of numbers, or a long encoded text
    copies_sample        hands in the sample submission, as it is or in another order
    constant_output      predicts one constant
    ignores_train        predicts without reading anything to learn from
    no_fitting           reads the training data, and nothing of it reaches the predictions

They refuse only what an honest program has no reason to do: a wrong refusal costs a program that nobody mends. What
makes cheating useless is that no answers are mounted where a program runs.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from openmle_gym.parsing import parse_source, walk
from openmle_gym.review.sources import Source, predictions
from openmle_gym.review.syntax import Syntax, dotted, path_argument

MOST_NUMBERS = 200
"""In one literal; grids of settings, kernels and tables of constants are smaller."""
LONGEST_ENCODED = 2_000
"""Characters of one text without spaces, in the alphabet of base64 or hex."""

_ANSWERS = re.compile(
    r"test_answers?(\.\w|\*)|[/\\]test_answer|[/\\]private([/\\]|$)|^private[/\\]|/proc/(self|\d+|\*)/(environ|mem|root|cwd|fd|maps|cmdline)|docker\.sock",
    re.IGNORECASE,
)
_METRIC = re.compile(r"(^|[/\\])(utils[/\\])?metric\.py$")
_PARENT = re.compile(r"(^|[/\\])\.\.([/\\]|$)")
_CUSTOMARY = re.compile(r"\.\.[/\\](input|data)([/\\](?!.*\.\.)|$)")
"""Where other sites keep a task's data. There is nothing of that kind where programs run; the error can be mended."""
_PLACES_FOR_DATA = re.compile(
    r"/(tmp|var/tmp|usr|opt|kaggle|input|data|mnt/data|content|workspace|dev/(null|shm|u?random)|proc/(cpuinfo|meminfo|stat)"
    r"|proc/self/status|sys/fs/cgroup|sys/devices/system/cpu)([/\\]|$)"
)
_REMOTE = re.compile(r"(https?|ftp|s3|gs)://")
_ENCODED = re.compile(r"[A-Za-z0-9+/=_-]+")
_READERS = frozenset(
    [
        "open",
        "read_csv",
        "read_table",
        "read_parquet",
        "read_pickle",
        "read_json",
        "read_excel",
        "read_feather",
        "load",
        "loadtxt",
        "genfromtxt",
        "read_text",
        "read_bytes",
        "listdir",
        "scandir",
        "walk",
        "glob",
        "rglob",
        "iterdir",
        "copy",
        "copy2",
        "copyfile",
        "copytree",
        "move",
        "link",
        "symlink",
        "chdir",
        "imread",
    ]
)
_JOINERS = frozenset({"join", "joinpath", "Path", "PurePath", "PosixPath"})
_NETWORK = [
    "requests.get",
    "requests.post",
    "requests.request",
    "requests.Session",
    "urllib.request.urlopen",
    "urllib.request.urlretrieve",
    "http.client.HTTPConnection",
    "http.client.HTTPSConnection",
    "socket.create_connection",
    "socket.socket",
    "httpx.get",
    "httpx.post",
    "httpx.Client",
    "ftplib.FTP",
    "paramiko.SSHClient",
    "kaggle.api",
    "wget.download",
    "gdown.download",
]
_STARTERS = frozenset(
    [
        "os.system",
        "os.popen",
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.Popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    ]
)
_ERRANDS = re.compile(
    r"(^|[\s;|&/])(curl|wget|scp|sftp|ssh|nc|ncat|kaggle|gsutil|aws)(\s|$)|git\s+clone|(^|[\s;|&])(cat|find|ls|grep|locate)\s+(-\S+\s+)*/"
)
_OWN = ("openmle_gym", "openmle_evo", "openmle_erl", "sandbox_service")
_KNOWN_DATA = re.compile(
    r"sklearn\.datasets\.(load_(iris|digits|breast_cancer|diabetes|wine|linnerud)|fetch_\w+)"
    r"|seaborn\.load_dataset|statsmodels\.datasets\.\w+\.load(_pandas)?|statsmodels\.api\.datasets\.\w+\.load(_pandas)?"
    r"|openml\.datasets\.get_dataset"
)


class Evidence(NamedTuple):
    """Why a program is refused."""

    line: int
    message: str


class Parsed(Syntax):
    """A program's syntax with what several detectors ask of it."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.data_dirs = _data_dirs(self.nodes)
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        bare = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        self.strings = [
            (node.lineno, node.value)
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
        ]
        """Every string constant with its line, docstrings and other bare strings left out."""

    def name(self, call: ast.Call) -> str:
        """What is called, by its full name; empty where that is not plain."""
        return dotted(call.func, self.imports)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _reads_answers(program: Parsed) -> Iterator[Evidence]:
    for line, text in program.strings:
        if _ANSWERS.search(text):
            yield Evidence(line, f"names {text[:80]!r}: a program must not look for the hidden answers")
    for call in program.calls:
        if _called(call) in _JOINERS and any(
            isinstance(each, ast.Constant) and each.value == "private" for each in call.args
        ):
            yield Evidence(call.lineno, "goes to a folder `private`: a program must not look for the hidden answers")
    for node in program.nodes:
        match node:
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value="private")):
                yield Evidence(
                    node.lineno, "goes to a folder `private`: a program must not look for the hidden answers"
                )
            case _:
                pass


def _reads_outside(program: Parsed) -> Iterator[Evidence]:
    for call in program.calls:
        name, path = _called(call), path_argument(call)
        if name in _READERS and path is not None:
            for text in _own_texts(path):
                if text.startswith("/") and len(text) > 1 and not _PLACES_FOR_DATA.match(text) and _is_file(text):
                    yield Evidence(call.lineno, f"reads {text[:80]!r}, outside the folder in DATA_DIR")
        joins_path = name != "join" or program.name(call).endswith("path.join") or len(call.args) > 1
        if name in _READERS | _JOINERS and joins_path:
            for text in (text for each in call.args for text in _own_texts(each)):
                if _PARENT.search(text) and not _CUSTOMARY.match(text):
                    yield Evidence(call.lineno, f"goes to a parent folder by {text[:80]!r}")
        if name == "dirname" and call.args and _is_data_dir(call.args[0], program.data_dirs):
            yield Evidence(call.lineno, "goes to the folder above DATA_DIR")
    for node in program.nodes:
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("parent", "parents")
            and _is_data_dir(node.value, program.data_dirs)
        ):
            yield Evidence(node.lineno, "goes to the folder above DATA_DIR")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
            for each in (node.left, node.right):
                if not isinstance(each, ast.Constant) or not isinstance(each.value, str):
                    continue
                if _PARENT.search(each.value) and (isinstance(node.op, ast.Div) or "/" in each.value):
                    yield Evidence(node.lineno, f"goes to a parent folder by {each.value[:80]!r}")


def _own_texts(node: ast.expr) -> Iterator[str]:
    """The strings at the start of a path expression: constants, and constants inside f-strings and joins."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _is_file(text: str) -> bool:
    """Not a mere separator or ending inside a longer path, such as the `/train.csv` of `folder + "/train.csv"`."""
    return text.count("/") > 1 and bool(
        re.match(r"/(proc|sys|etc|root|home|var|mnt|srv|run|boot|media|private)/", text)
    )


def _is_data_dir(node: ast.expr, names: Set[str]) -> bool:
    """Whether an expression is the folder DATA_DIR itself: one of the names, or through `Path`, `str`, `resolve`."""
    match node:
        case ast.Name():
            return node.id in names
        case ast.Subscript(slice=ast.Constant(value="DATA_DIR")):
            return True
        case ast.Call(func=func, args=args):
            if any(isinstance(each, ast.Constant) and each.value == "DATA_DIR" for each in args[:1]):
                return True
            if _called(node) in ("Path", "str", "abspath", "realpath", "fspath") and len(args) == 1:
                return _is_data_dir(args[0], names)
            return (
                isinstance(func, ast.Attribute)
                and func.attr in ("resolve", "absolute", "expanduser")
                and _is_data_dir(func.value, names)
            )
        case _:
            return False


def _data_dirs(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that hold the folder DATA_DIR, through at most two assignments."""
    names: set[str] = set()
    for _ in range(2):
        for node in nodes:
            if isinstance(node, ast.Assign) and _is_data_dir(node.value, names):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _reads_metric(program: Parsed) -> Iterator[Evidence]:
    for line, text in program.strings:
        if _METRIC.search(text):
            yield Evidence(line, f"names {text[:80]!r}: a program must not read how it is scored")
    for node in program.nodes:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module in ("metric", "utils.metric") or module.partition(".")[0] in _OWN:
                yield Evidence(node.lineno, f"imports {module}: a program must not reach for what scores it")


def _loads_known_data(program: Parsed) -> Iterator[Evidence]:
    for call in program.calls:
        if _KNOWN_DATA.fullmatch(program.name(call)):
            yield Evidence(call.lineno, f"loads a public data set by {program.name(call)}, which may hold the answers")


def _uses_network(program: Parsed) -> Iterator[Evidence]:
    for call in program.calls:
        name, path = program.name(call), path_argument(call)
        if any(name == each or name.startswith(f"{each}.") for each in _NETWORK):
            yield Evidence(call.lineno, f"asks the network by {name}")
        elif name in _STARTERS and path is not None:
            parts = path.elts if isinstance(path, ast.List | ast.Tuple) else [path]
            command = " ".join(text for part in parts for text in program.texts.of(part))
            if _ERRANDS.search(command):
                yield Evidence(call.lineno, f"starts another program to fetch or look for something: {command[:80]!r}")
        elif _called(call) in _READERS and path is not None:
            for text in filter(_REMOTE.match, _own_texts(path)):
                yield Evidence(call.lineno, f"reads {text[:80]!r} from the network")


def _hard_coded(program: Parsed) -> Iterator[Evidence]:
    seen: set[int] = set()
    for node in program.nodes:  # outer literals come before those inside them
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            if id(node) in seen:
                continue
            seen |= set(map(id, walk(node)))
            numbers = _numbers(node)
            if numbers >= MOST_NUMBERS:
                yield Evidence(node.lineno, f"holds {numbers} numbers in one literal")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            digits = len(re.findall(r"-?\d+(?:\.\d+)?", text)) if len(text) >= MOST_NUMBERS else 0
            packed = "".join(text.split())
            if digits >= MOST_NUMBERS and sum(map(str.isalpha, text)) < len(text) / 10:
                yield Evidence(node.lineno, f"holds {digits} numbers in one text")
            elif _is_encoded(text, packed):
                yield Evidence(node.lineno, f"holds an encoded text of {len(packed)} characters")


def _is_encoded(text: str, packed: str) -> bool:
    """Long, in one alphabet, without blanks, and with as many digits as no list of words has."""
    is_long = len(packed) >= LONGEST_ENCODED and " " not in text.strip()
    return is_long and bool(_ENCODED.fullmatch(packed)) and sum(map(str.isdigit, packed)) > len(packed) / 20


def _numbers(node: ast.expr) -> int:
    """Numbers among the values of a literal, nested ones included."""
    match node:
        case ast.Constant(value=value):
            return int(isinstance(value, int | float) and not isinstance(value, bool))
        case ast.UnaryOp(operand=operand):
            return _numbers(operand)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return sum(map(_numbers, parts))
        case ast.Dict(values=values):
            return sum(map(_numbers, values))
        case _:
            return 0


def _predicts_nothing(program: Parsed) -> Iterator[tuple[str, Evidence]]:
    made = predictions(program)
    if made is None or Source.LEARNT in made.sources:
        return
    if made.writes_constant and Source.RANDOM not in made.sources:
        yield "constant_output", Evidence(made.line, "writes the same constant for every row")
    elif made.sources == {Source.SAMPLE}:
        yield "copies_sample", Evidence(made.line, "hands in the sample submission")
    elif made.shuffles_sample:
        yield "copies_sample", Evidence(made.line, "hands in the sample submission's values in another order")
    elif made.reads_more:
        yield "no_fitting", Evidence(made.line, "reads the training data, but nothing of it reaches the predictions")
    else:
        yield "ignores_train", Evidence(made.line, "predicts without reading anything to learn from")


Detector = Callable[[Parsed], Iterator[Evidence]]
DETECTORS: Mapping[str, Detector] = {
    "reads_answers": _reads_answers,
    "reads_outside": _reads_outside,
    "reads_metric": _reads_metric,
    "loads_known_data": _loads_known_data,
    "uses_network": _uses_network,
    "hard_coded": _hard_coded,
}
"""Those that look at single places; the four about predictions come after them, together."""


def first_evidence(source: str) -> tuple[str, Evidence] | None:
    """What the first detector with a finding says; None for a program that does not parse, as it cannot run."""
    tree = parse_source(source).tree
    if tree is None:
        return None
    try:
        program = Parsed(tree)
        for signature, detector in DETECTORS.items():
            if (evidence := next(detector(program), None)) is not None:
                return signature, evidence
        return next(_predicts_nothing(program), None)
    except (ValueError, RecursionError, MemoryError):
        return None
