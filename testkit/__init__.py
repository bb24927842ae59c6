"""What tests and benchmarks share: made-up input, fakes, and processes that are killed on purpose."""
