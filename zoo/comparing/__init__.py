"""What ``zoo.compare``, ``zoo.plot`` and ``zoo.evidence`` are made of: runs, statistics, tables, figures."""
