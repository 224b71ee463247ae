"""Benchmarks, most of them in comparison with nanoGPT: ``python -m bench --help``."""
