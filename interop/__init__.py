"""Formats of other projects: GPT-2's layout, the Hugging Face hub, tokenizer.json; pickles are rejected."""
