"""What ``zoo.compare`` and ``zoo.plot`` are made of: runs, statistics, tables, figures."""
