"""Set-up, benchmarks of speed, and the studies."""
