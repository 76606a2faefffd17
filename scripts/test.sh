#!/usr/bin/env bash
# Installs what the tests need into .venv and runs the whole suite, two files at a time. Arguments go to pytest:
#   scripts/test.sh -m "not slow"
#   scripts/test.sh -n 0 tests/test_walk.py
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh test
exec .venv/bin/python -m pytest -n 2 --dist loadgroup "$@"
