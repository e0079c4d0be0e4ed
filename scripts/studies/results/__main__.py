"""``python -m scripts.studies.results``: see :mod:`scripts.studies.results.page`."""

import sys

from scripts.studies.results.page import main

sys.exit(main(sys.argv[1:]))
