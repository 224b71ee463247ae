"""Further programs, beside those in the top folder: python -m scripts.NAME --help."""
