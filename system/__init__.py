"""Files, locks, signals, the terminal, operating systems, and errors that the user can fix.

This package imports neither torch nor Hydra nor another package of ours, so every package may use it.
"""
