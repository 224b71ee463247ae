"""Published claims about normalization, measured again: a claim is a YAML in conf/finding, what is measured
of it a function here, and its verdict an interval over seeds against what was expected. findings.py is its
program."""
