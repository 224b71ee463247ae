"""What lies on disk of a run: its name, folder, status, checkpoints, metrics and their copy to wandb."""
