"""Run a sweep (several runs, started by one command): planning, tuning in two stages, progress, Slurm."""
