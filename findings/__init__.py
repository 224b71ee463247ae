"""Published claims about normalization, measured again: python -m findings NAME.

A claim is a YAML in conf/finding; what is measured of it is a function in findings/measures; its verdict is
an interval over seeds against what the claim predicts.
"""
