#!/usr/bin/env bash
# The closed loop by one command: teacher's programs, SFT, GSPO, searches on held-out tasks, report.
#   scripts/meta_evolution.sh [laptop|smoke|cluster] [key=value ...]      --help lists the settings
# Give it again to go on with a loop that was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh train
exec .venv/bin/python scripts/meta_evolution/run.py "$@"
