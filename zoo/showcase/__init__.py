"""The measured examples of docs/exploration.md, docs/curriculum.md and docs/health.md: run, save, tabulate, draw."""
