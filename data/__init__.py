"""Text → tokens → batches.

corpora.py      where text comes from
download.py     what is fetched over a network
tokenizers.py   text ⇄ token ids
gpt2.py         where GPT-2's tokens come from
prepared.py     both, once: a folder of token files, read through a memory map
adopted.py      folders of token files that were made elsewhere
shards.py       many token files as one array
large/          tokenizes corpora larger than memory: python -m scripts.prepare_corpus
batches.py      windows of those tokens, for training and evaluation
"""
