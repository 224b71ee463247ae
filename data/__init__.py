"""Text → tokens → batches.

corpora.py       the texts: your files, tinyshakespeare, Shakespeare's plays
tokenizers.py    text ⇄ token ids; gpt2_vocab.py loads GPT-2's tokens
token_cache.py   the tokens of a corpus, made once
token_files.py   a folder of token files, memory-mapped; shards.py joins several files to one array
external.py      folders of token files that were made elsewhere
large_corpus.py  tokenizes corpora larger than memory: python -m scripts.prepare_corpus
windows.py       windows of those tokens, for training and evaluation
"""
