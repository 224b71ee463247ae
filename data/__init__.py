"""Text → tokens. training/batches.py makes batches of them.

corpora.py       the texts: your files, tinyshakespeare, Shakespeare's plays (shakespeare.txt.xz)
tokenizers.py    text ⇄ token ids; GPT-2's merges are in gpt2.bpe.xz
prepared.py      tokenizes a corpus once, and loads the tokens of both splits
external.py      folders of token files that other programs wrote
large_corpus.py  tokenizes corpora larger than memory: python -m scripts.prepare_corpus
errors.py        errors whose message is for the user
files.py         small files: written whole or not at all, and checked when they are read
"""
