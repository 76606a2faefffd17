"""Reading a program's output: the signature of its failure, and the score that it claims."""

import re

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)?)(?::|$)")
_CLAIM = re.compile(r"Final Validation Score:\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
PROGRAM_FILE = "main.py"


def error_signature(log: str) -> str | None:
    """The last traceback as `Type@function`: equal failures give equal signatures.

    The frame is the last one of the program's own code. Its line number is left out, as it moves with every edit.
    None when the log holds no traceback.
    """
    start = log.rfind("Traceback (most recent call last)")
    text = log[start:] if start >= 0 else log
    frames = [match for match in _FRAME.finditer(text) if match["file"].endswith(PROGRAM_FILE)]
    if start < 0 and not frames:
        return None
    error = next((found["type"] for line in reversed(text.splitlines()) if (found := _ERROR.match(line))), "Error")
    where = frames[-1]["function"] if frames else None
    return f"{error.rpartition('.')[2]}@{where or '<module>'}"


def error_message(log: str) -> str:
    """The last line of a traceback and the program's own line that it came from, for a model to read."""
    start = log.rfind("Traceback (most recent call last)")
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
    """The last `Final Validation Score: x` that a program printed; None when it printed none."""
    claims = _CLAIM.findall(log)
    return float(claims[-1]) if claims else None
