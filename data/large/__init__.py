"""Corpora larger than memory: arrow_batches.py tokenizes them, token_writer.py writes the tokens."""
