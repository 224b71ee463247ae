"""Text → tokens. training/batches.py makes batches of them.

corpora.py       the texts: your files, tinyshakespeare, Shakespeare's plays (shakespeare.txt.xz)
tokenizers.py    text ⇄ token ids; GPT-2's merges are in gpt2.bpe.xz
token_files.py   folders of token files, memory-mapped; python -m scripts.prepare_corpus writes them, too
external.py      describes token files that other programs wrote
prepared.py      tokenizes a corpus once, and loads the tokens of both splits
errors.py        errors whose message is for the user
files.py         small files: written whole or not at all, and checked when they are read
"""
