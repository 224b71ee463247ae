"""What is written to disk and shown on a terminal: plain data, text that steers nothing, and locks. Imports
nothing of ours, and neither torch nor Hydra, so that every room may use it."""
