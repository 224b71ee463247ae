"""Models of other projects: GPT-2's weights and tokenizer.json, by transformers and tokenizers. No pickle is
opened, and no code that comes with a model is run."""
