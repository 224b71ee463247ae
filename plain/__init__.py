"""What is written to disk and shown on a terminal: plain data, and text that steers nothing. Imports nothing
of ours, and neither torch nor Hydra, so that every room may use it."""
