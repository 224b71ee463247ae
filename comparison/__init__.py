"""Run folders → statistics → figures and reports. Imports no torch, so it starts at once."""
