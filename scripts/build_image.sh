#!/usr/bin/env bash
# Builds the image in which candidate programs run; needs Python and a docker command, and nothing installed.
#   VARIANT      cpu, or gpu (adds PyTorch)                  (default: cpu)
#   BASE_IMAGE   another base with Python 3.11 and venv      (default: python:3.11-slim)
#   IMAGE        another tag                                 (default: openmle/sandbox:$VARIANT)
#   DOCKER       another docker command                      (default: docker)
#   PYTHON       another interpreter                         (default: python3)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
variant=${VARIANT:-cpu}
export PYTHONPATH="$here/openmle_gym/src:$here/sandbox_service/src"
exec "${PYTHON:-python3}" -m sandbox_service.image.build \
    "$variant" "${BASE_IMAGE:-python:3.11-slim}" "${IMAGE:-openmle/sandbox:$variant}" "${DOCKER:-docker}"
