#!/usr/bin/env bash
# Install, train with a progress bar and TensorBoard logs, evaluate over 20 episodes, draw the learning curve.
# usage: bash scripts/train.sh ENV_ID [options of python -m zoo.train]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh" zoo,envs
env_id=${1:-CartPole-v1}
[ $# -gt 0 ] && shift
exec python -m zoo.train --env "$env_id" --progress --verbose 0 --num-threads 1 --eval-freq 5000 --eval-episodes 10 "$@"
