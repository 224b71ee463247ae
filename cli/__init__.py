"""The command line: compose conf/ with the arguments, validate the result, print errors in one line."""
