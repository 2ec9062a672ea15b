"""Benchmarks. Each module's docstring is its report; `scripts/bench NAME` runs one."""
