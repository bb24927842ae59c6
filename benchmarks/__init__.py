"""Programs that measure, and their last results in `benchmarks/results/`."""
