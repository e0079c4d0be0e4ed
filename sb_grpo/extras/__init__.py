"""Who is compared with whom, weights, exploration: what most trainings go without."""
