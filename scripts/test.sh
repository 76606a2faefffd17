#!/usr/bin/env bash
# Installs what the tests need into .venv and runs the whole suite. Arguments go to pytest: scripts/test.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh test
exec .venv/bin/python -m pytest "$@"
