"""Parts of ``zoo.dashboard`` and ``zoo.report``: a run's data, its page, and a server that updates it."""
