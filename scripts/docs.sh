#!/usr/bin/env bash
# Build the docs site into docs/_site; a warning (a broken link, a page outside the navigation) is an error.
# usage: bash scripts/docs.sh [--serve]      --serve then shows it at http://localhost:8000
set -euo pipefail
if [[ $# -gt 1 || "${1:---serve}" != --serve ]]; then
    echo "usage: bash scripts/docs.sh [--serve] (given: $*)" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/env.sh" zoo,envs,sim,tests,docs
# NO_MKDOCS_2_WARNING: the theme's notice about a version of MkDocs that is not used here.
NO_MKDOCS_2_WARNING=1 PYTHONPATH=. python -m mkdocs build --strict --quiet
rm -rf docs/_site
mv build/site docs/_site
echo "Built docs/_site ($(find docs/_site -name '*.html' | wc -l) pages). To see it: bash scripts/docs.sh --serve"
if [[ "${1:-}" == --serve ]]; then
    exec python -m http.server 8000 --bind localhost --directory docs/_site
fi
