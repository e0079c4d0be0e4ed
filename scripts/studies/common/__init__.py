"""What the studies share: trainings, raw results on disk, tables."""
