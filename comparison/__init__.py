"""Compare runs: run folders → statistics → figures and reports. Starts at once, as it imports no torch."""
