"""The folder of a run: its name, files, status, checkpoints and metrics, and the copy of metrics for
wandb."""
