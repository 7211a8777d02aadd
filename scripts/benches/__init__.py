"""Benchmarks: each module with a main is one; see `scripts/bench`."""
