"""Benchmarks, most of them beside nanoGPT: ``python -m bench --help``."""
