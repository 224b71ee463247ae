"""Several runs by one command: planning, tuning in two stages, progress, Slurm."""
