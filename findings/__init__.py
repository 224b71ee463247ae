"""Published claims about normalization, measured again: python -m findings NAME."""
