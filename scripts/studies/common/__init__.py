"""Common parts of the studies: trainings, raw results on disk, tables."""
