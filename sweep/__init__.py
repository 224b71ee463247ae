"""Run a sweep, several runs by one command: planning, tuning in two stages, progress, Slurm."""
