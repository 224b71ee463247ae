"""Programs beside those of the top folder and the findings: python -m scripts.NAME --help."""
