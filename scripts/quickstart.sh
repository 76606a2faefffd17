#!/usr/bin/env bash
# From a fresh clone to a searched and graded task, on this machine alone: no API key, no model, no Docker, no GPU.
#   TASK    another anchor (openmle-gym anchors list)   STEPS   programs to judge   WORKERS   programs at once
#   SEED    another search                              RUNS    where run directories are made
set -euo pipefail
cd "$(dirname "$0")/.."
task=${TASK:-diamonds} steps=${STEPS:-40} workers=${WORKERS:-2}
run=${RUNS:-runs}/$task-$(date +%Y%m%d-%H%M%S)

scripts/install.sh
export PATH="$PWD/.venv/bin:$PATH"

# A task package from real data: public files, hidden answers, a metric, a reference leaderboard.
openmle-gym anchors build "$task" --output tasks --allow-process >/dev/null

# The sandbox service, with one key that may submit and one that may also grade on the test split.
OPENMLE_SANDBOX_KEY=$(openssl rand -hex 16 2>/dev/null || python -c 'import secrets; print(secrets.token_hex(16))')
OPENMLE_SANDBOX_GRADE_KEY=$(python -c 'import secrets; print(secrets.token_hex(16))')
export OPENMLE_SANDBOX_KEY OPENMLE_SANDBOX_GRADE_KEY
mkdir -p "$run"
OPENMLE_SANDBOX_KEYS="submit:$OPENMLE_SANDBOX_KEY,grade:$OPENMLE_SANDBOX_GRADE_KEY" \
    openmle-sandbox serve task_roots="[\"$PWD/tasks\"]" state_dir="$run/sandbox" port=0 ready_file="$run/sandbox.url" \
    workers="$workers" allow_process=true &
service=$!
trap 'kill "$service" 2>/dev/null; wait "$service" 2>/dev/null || true' EXIT
until [ -e "$run/sandbox.url" ]; do
    kill -0 "$service" 2>/dev/null || { echo "the sandbox service did not start" >&2; exit 3; }
    sleep 0.05
done

# The search: drafts, improves, debugs and crosses programs; then grades the best one, once, on the test split.
# With seed 8 the very first draft contains a slip, so that Debug, too, is seen at work.
openmle-evo search task="tasks/$task" service="$(cat "$run/sandbox.url")" run_dir="$run" \
    budget.attempts="$steps" workers="$workers" seed="${SEED:-8}" schedule.draft_probability=0.1 >/dev/null
