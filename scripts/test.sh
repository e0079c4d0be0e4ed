#!/usr/bin/env bash
# Install, then lint, types, tests.
# usage: bash scripts/test.sh [--slow]      --slow also runs the real trainings
set -euo pipefail
if [[ $# -gt 1 || "${1:---slow}" != --slow ]]; then
    echo "usage: bash scripts/test.sh [--slow] (given: $*)" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/env.sh" zoo,envs,sim,scale,solve,text,tests,docs
export OMP_NUM_THREADS=1
# Some images forbid Python to keep byte code: every process that a test starts would then compile this package anew.
unset PYTHONDONTWRITEBYTECODE
ruff check .
mypy
python -m pytest -n 2 --dist loadfile -rs --durations=10 --cov --cov-report=term --cov-fail-under=95
if [ "${1:-}" = "--slow" ]; then
    python -m pytest -n 2 --dist loadfile -rs -m slow --durations=10
fi
