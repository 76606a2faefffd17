#!/usr/bin/env bash
# Checks of the training stack on one CUDA GPU: parity with the CPU, then speed and memory in one table; under ten
# minutes. PYTHON names the interpreter; it needs torch with CUDA, transformers and pytest, and megatron-core or sglang
# for the parts that use them. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONPATH=openmle_gym/src:openmle_erl/src${PYTHONPATH:+:$PYTHONPATH}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu_checks: torch sees no CUDA GPU on this machine; nothing was checked" >&2
  exit 3
fi
for package in megatron.core sglang; do
  "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package'.split('.')[0]) is None)" ||
    echo "gpu_checks: $package is not installed; its checks are left out"
done
timeout 300 "$python" -m pytest -q -m gpu tests/erl "$@"
timeout 280 "$python" scripts/gpu_checks.py
