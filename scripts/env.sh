# Sourced by the scripts: makes or reuses the virtual environment .venv with the tested versions, and activates it.
# usage: source scripts/env.sh EXTRAS      (for example: source scripts/env.sh zoo,envs)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed (set PYTHON=...)." >&2; exit 2; }
[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
source .venv/bin/activate
stamp=.venv/installed-$(cat setup.cfg scripts/constraints.txt | cksum | cut -d' ' -f1)-${1//[^a-z]/-}
if [ ! -e "$stamp" ]; then
    echo "Installing sb_grpo[$1] into .venv (once: about 2 GB, 2 to 5 minutes) ..."
    python -m pip install --disable-pip-version-check -c scripts/constraints.txt torch
    python -m pip install --disable-pip-version-check -c scripts/constraints.txt -e ".[$1]"
    touch "$stamp"
fi
