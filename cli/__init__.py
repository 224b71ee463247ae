"""What the user asked: composing conf/ with the command line, checking it, one-line errors."""
