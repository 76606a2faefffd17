"""What the hostile programs begin with: how they tell what they learned, and how they write a submission.

The programs use the standard library alone, so that they run in any image with Python.
"""

FACT = "@" + "fact "
"""Begins a line of the log that holds facts as JSON."""

TELL = """
import json, os, sys
def tell(**facts):
    os.write(1, ("@" + "fact " + json.dumps(facts) + "\\n").encode())
def attempt(action):
    try:
        return repr(action())[:200]
    except BaseException as error:
        return type(error).__name__ + ":" + str(getattr(error, "errno", None))
"""
"""`tell(name=value)` reports; `attempt(f)` is what f() returned, or the error's type and number."""

SUBMIT = (
    TELL
    + """
import csv
def data(name):
    for variable in ("DATA_DIR", "SANDBOX_DATA_DIR"):
        for middle in ("", "public", "data/public"):
            path = os.path.join(os.environ.get(variable, "/nowhere"), middle, name)
            if os.path.exists(path):
                return path
    raise FileNotFoundError(name + " below DATA_DIR")
def rows():
    with open(data("test.csv")) as file:
        return [(row["id"], float(row["x"])) for row in csv.DictReader(file)]
def submit(predict=lambda x: 2 * x + 1, path="submission.csv"):
    with open(path, "w") as file:
        file.write("id,y\\n")
        for name, x in rows():
            file.write("%s,%r\\n" % (name, predict(x)))
"""
)
"""`submit()` writes the right answer; `submit(f)` predicts f(x); `data(name)` is the path of a public file."""

CANARY_HALVES = ("canary-5b1f", "-of-the-hidden-answers")
"""Together they stand in every private file of the package. A program holds them apart, to not find itself."""
CANARY = "".join(CANARY_HALVES)
