"""Published claims about normalization, measured again: python -m findings NAME.

A claim is a YAML in conf/finding; a function in findings/measures measures it; the verdict compares an
interval over seeds with the range that the claim predicts.
"""
