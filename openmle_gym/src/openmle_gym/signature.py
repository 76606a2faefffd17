"""Reading a program's output: the signature of its failure, and the score that it claims."""

import math
import re

_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)?)(?::|$)")
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_CLAIM = re.compile(r"Final Validation Score:\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
PROGRAM_FILE = "main.py"


def error_signature(log: str) -> str | None:
    """The last traceback as `Type@function`: equal failures give equal signatures.

    The frame is the last one of the program's own code. Its line number is left out, as it moves with every edit.
    None when the log holds no traceback.
    """
    start = log.rfind(_TRACEBACK)
    text = log[start:] if start >= 0 else log
    frames = [match for match in _FRAME.finditer(text) if match["file"].endswith(PROGRAM_FILE)]
    if start < 0 and not frames:
        return None
    error = next((found["type"] for line in reversed(text.splitlines()) if (found := _ERROR.match(line))), "Error")
    where = frames[-1]["function"] if frames else None
    return f"{error.rpartition('.')[2][:100]}@{(where or '<module>')[:100]}"


def failure_text(log: str) -> str:
    """What a log says of its failure: the last traceback with those that led to it, else the last lines."""
    tracebacks = log.split(_TRACEBACK)
    if len(tracebacks) == 1:
        return log[-2000:]
    first = len(tracebacks) - 1
    while first > 1 and any(sentence in tracebacks[first - 1][-200:] for sentence in _CHAINED):
        first -= 1
    return "".join(tracebacks[first:])


def error_message(log: str) -> str:
    """The last line of a traceback and the program's own line that it came from, for a model to read."""
    start = log.rfind(_TRACEBACK)
    lines = [line for line in log[max(start, 0) :].splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "no output")
    own = [index for index, line in enumerate(lines) if _FRAME.match(line) and f'{PROGRAM_FILE}"' in line]
    if not own:
        return error[:500]
    frame = _FRAME.match(lines[own[-1]])
    assert frame is not None
    code = lines[own[-1] + 1].strip() if own[-1] + 1 < len(lines) else ""
    return f"{error[:500]} (line {frame['line']}: {code[:200]})"


def self_reported_score(log: str) -> float | None:
    """The last `Final Validation Score: x` that a program printed; None when it printed none, or one beyond all floats."""
    claims = _CLAIM.findall(log)
    score = float(claims[-1]) if claims else math.inf
    return score if math.isfinite(score) else None
