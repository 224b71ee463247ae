"""One run in this process: what the loop of train.py uses."""
