#!/usr/bin/env bash
# Install, train with a progress bar and TensorBoard logs, evaluate over 20 episodes, draw the learning curve.
# usage: bash scripts/train.sh [ENV_ID] [options of python -m zoo.train]; without an ENV_ID: CartPole-v1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh" zoo,envs
env_id=CartPole-v1
if [[ $# -gt 0 && $1 != -* ]]; then
  env_id=$1
  shift
fi
exec python -m zoo.train --env "$env_id" --progress --verbose 0 --num-threads 1 --eval-freq 5000 --eval-episodes 10 "$@"
