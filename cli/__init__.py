"""The command line: composing conf/ with what was typed, validation, and one-line errors."""
