"""Text → tokens → batches.

corpora.py      where text comes from
tokenizers.py   text ⇄ token ids
prepared.py     both, once: a folder of token files, read through a memory map
batches.py      windows of those tokens, for training and evaluation
"""


class DataError(ValueError):
    """Something about the user's text or tokens; its message is for them: ``<key or file>: <what>; <what to
    do>``."""
