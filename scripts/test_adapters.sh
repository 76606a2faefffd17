#!/usr/bin/env bash
# Runs the tests that need other people's frameworks against the frameworks themselves, each in an environment of its
# own: their pins fit together neither with ours nor with each other's. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0
export PYTHONPATH=$PWD/openmle_gym/src:$PWD/openmle_erl/src

# run ENVIRONMENT REQUIREMENTS PYTEST-ARGUMENT...
run() {
  local env=$1 pins=$2
  shift 2
  [ -x "$env/bin/python" ] || python3 -m venv "$env"
  echo '*' >"$env/.gitignore"
  if ! cmp -s "$pins" "$env/installed.txt"; then
    # Every version is pinned, and some packages ask for others than run: pip need not resolve anything.
    "$env/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile -r "$pins"
    cp "$pins" "$env/installed.txt"
  fi
  PATH=$PWD/$env/bin:$PATH "$env/bin/python" -m pytest -q -rs -p no:cacheprovider -W ignore::FutureWarning "$@"
}

run .venv-adapters tests/erl/adapters-requirements.txt \
  tests/erl/test_tensors.py tests/erl/test_adapter_*.py tests/erl/test_rewards_page.py "$@"
run .venv-verifiers tests/gym_bridges/verifiers-requirements.txt tests/gym_bridges/test_environments.py -k verifiers "$@"
run .venv-openenv tests/gym_bridges/openenv-requirements.txt tests/gym_bridges/test_environments.py -k openenv "$@"
