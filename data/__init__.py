"""Text → tokens → batches.

corpora.py       the texts: your files, tinyshakespeare, Shakespeare's plays
tokenizers.py    text ⇄ token ids; gpt2_vocab.py loads GPT-2's tokens
carried.py       data files in installed packages: plays, and GPT-2's tokens
token_cache.py   tokenizes a corpus once and keeps the tokens
token_files.py   a folder of token files, memory-mapped; shards.py joins several files into one array
external.py      folders of token files that other programs wrote
large_corpus.py  tokenizes corpora larger than memory: python -m scripts.prepare_corpus
windows.py       windows of tokens, for training and evaluation
"""
