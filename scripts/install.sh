#!/usr/bin/env bash
# Creates .venv and installs the four libraries into it, editable, with the tested versions of constraints.txt.
#   scripts/install.sh            what the quickstart needs (no torch)
#   scripts/install.sh train      that, and what training needs (torch)
#   scripts/install.sh test       all of it, and what the tests and checks need
# Does nothing when that is there already. PYTHON names another interpreter (3.11 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-run}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed; $("$python" --version) is $(command -v "$python"). Set PYTHON to a newer one." >&2
    exit 2
}

wanted=$(cat constraints.txt pyproject.toml ./*/pyproject.toml scripts/install.sh | sha256sum | cut -d' ' -f1)
stamp=.venv/.installed-$kind
[ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

echo "installing into .venv ..." >&2
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt)
libraries=(-e './openmle_gym[tasks,bubblewrap,docker]' -e ./openmle_evo -e ./openmle_erl -e ./sandbox_service)
case $kind in
    train) libraries+=(-e './openmle_erl[train]') ;;
    test) libraries+=('.[test]') ;;
esac
# One dependency has no wheel; the setuptools of a new environment is too old to make it one.
"${pip[@]}" hatchling editables setuptools
"${pip[@]}" --no-build-isolation "${libraries[@]}"
echo "$wanted" >"$stamp"
case $kind in
    train) echo "$wanted" >.venv/.installed-run ;;
    test) echo "$wanted" | tee .venv/.installed-run >.venv/.installed-train ;;
esac
