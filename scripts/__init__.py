"""Programs besides train.py, sample.py, compare.py and the findings: python -m scripts.NAME --help."""
