"""Models of other projects: GPT-2's weights, with the library transformers, and tokenizer.json, with the
library tokenizers. No pickle is opened, and no code that comes with a model is run."""
