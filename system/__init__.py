"""Files, locks, signals, the terminal, operating systems, and the errors that are the user's.

This package imports neither torch nor Hydra nor another package of ours, so every other one may use it.
"""
