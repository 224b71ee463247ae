"""Read and write formats of other projects: GPT-2's layout and tokenizer.json; download from the Hugging Face
hub. Pickles are rejected."""
