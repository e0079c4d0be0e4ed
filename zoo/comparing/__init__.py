"""Parts of ``zoo.compare`` and ``zoo.plot``: runs, statistics, tables, figures."""
