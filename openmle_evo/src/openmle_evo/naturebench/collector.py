"""Runs inside the sandbox, around a program: gives it OUTPUT_DIR, and packs what it wrote there into one file.

Nothing here is trusted by us: what it packs is read as a hostile program's. The program may as well pack it itself.
"""

import os
import subprocess
import sys
import tarfile

PROGRAM, OUTPUTS, PACKED = "main.py", "output", "outputs.tar"


def main() -> None:
    os.makedirs(OUTPUTS, exist_ok=True)
    environment = {**os.environ, "OUTPUT_DIR": os.path.abspath(OUTPUTS)}
    code = subprocess.run([sys.executable, "-u", PROGRAM], env=environment, check=False).returncode
    if code == 0 and any(files for _, _, files in os.walk(OUTPUTS)):
        with tarfile.open(PACKED, "w", format=tarfile.PAX_FORMAT) as packed:
            packed.add(OUTPUTS, arcname=".")
    sys.exit(code if code >= 0 else 128 - code)  # as shells tell a signal


if __name__ == "__main__":
    main()
