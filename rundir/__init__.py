"""The folder of a run: its name, files, status, checkpoint format, metrics log, and the copy for wandb."""
