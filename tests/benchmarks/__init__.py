"""The benchmarks, as far as they run without a GPU."""
