"""The network: pure PyTorch, usable without the rest of the project; docs/library.md shows how.

from model import GPT
from model.norms import LayerNorm
from model.placements import Pre
gpt = GPT(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128, norm=LayerNorm, placement=Pre)
"""

from model.gpt import GPT

__all__ = ["GPT"]
