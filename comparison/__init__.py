"""Compare runs: run folders → statistics → figures and reports. Imports no torch, to start at once."""
