"""Read and write formats of other projects: GPT-2's layout, tokenizer.json, the Hugging Face hub. Pickles are
rejected."""
