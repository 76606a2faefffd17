#!/usr/bin/env bash
# Builds the image in which candidate programs run: openmle/sandbox:cpu.
#   BASE_IMAGE   another base with Python 3.11 and venv      (default: python:3.11-slim)
#   IMAGE        another tag                                 (default: openmle/sandbox:cpu)
#   DOCKER       another docker command                      (default: docker)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
docker=${DOCKER:-docker}
# The Dockerfile keeps to what the classic builder knows, so that a client without buildx can build it too.
if ! "$docker" buildx version >/dev/null 2>&1; then
    export DOCKER_BUILDKIT=0
fi
exec "$docker" build \
    --build-arg "BASE_IMAGE=${BASE_IMAGE:-python:3.11-slim}" \
    --tag "${IMAGE:-openmle/sandbox:cpu}" \
    "$here/sandbox_service/src/sandbox_service/image"
