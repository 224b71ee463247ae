"""What a run needs besides a model: its config, folder, checkpoints, optimizer, log, and the machine it runs
on."""
