#!/usr/bin/env bash
# Runs the reward adapters' tests against the frameworks themselves, in an environment of their own: the frameworks'
# pins do not fit together with ours, nor with each other. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
env=.venv-adapters
pins=tests/erl/adapters-requirements.txt
[ -x "$env/bin/python" ] || python3 -m venv "$env"
echo '*' > "$env/.gitignore"
if ! cmp -s "$pins" "$env/installed.txt"; then
  # Every version is pinned, and verl and SkyRL ask for older ones than run: pip need not resolve anything.
  "$env/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile -r "$pins"
  cp "$pins" "$env/installed.txt"
fi
export PYTHONPATH=openmle_gym/src:openmle_erl/src OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
exec "$env/bin/python" -m pytest -q -p no:cacheprovider -W ignore::FutureWarning \
  tests/erl/test_tensors.py tests/erl/test_adapter_*.py tests/erl/test_rewards_page.py "$@"
