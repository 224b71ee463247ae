"""A Transformer in torch alone, written from the papers without our model code, as a reference for numbers.

Weights are Xavier's (Glorot & Bengio 2010), embeddings N(0, 1/d); the MLP has the exact GELU; there are no
biases; heads have d / 4 channels; norms have no gain or bias (as initialised these have no effect).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

D, HEADS = 128, 4


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (D,))


def xavier(n_out: int, n_in: int, random: torch.Generator) -> Tensor:
    return torch.nn.init.xavier_normal_(torch.empty(n_out, n_in), generator=random).requires_grad_()


class Transformer:
    def __init__(self, placement: str, n_layer: int, vocabulary: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.placement = placement
        self.tokens = torch.randn(vocabulary, D, generator=random) / math.sqrt(D)
        self.positions = torch.randn(64, D, generator=random) / math.sqrt(D)
        self.head = xavier(vocabulary, D, random)
        self.layers = [
            {name: xavier(D, D, random) for name in ("q", "k", "v", "o")}
            | {"w1": xavier(4 * D, D, random), "w2": xavier(D, 4 * D, random)}
            for _ in range(n_layer)
        ]

    def attention(self, x: Tensor, layer: dict[str, Tensor]) -> Tensor:
        B, T, _ = x.shape
        q, k, v = ((x @ layer[name].T).view(B, T, HEADS, D // HEADS).transpose(1, 2) for name in "qkv")
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)
        past = torch.ones(T, T, dtype=torch.bool).tril()
        weights = scores.masked_fill(~past, -math.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(B, T, D) @ layer["o"].T

    def branches(self, layer: dict[str, Tensor]) -> tuple:
        return (lambda x: self.attention(x, layer), lambda x: F.gelu(x @ layer["w1"].T) @ layer["w2"].T)

    def streams(self, idx: Tensor) -> list[Tensor]:
        """Return the stream after the embedding and after each block, (B, T, D) each."""
        x = self.tokens[idx] + self.positions[: idx.shape[1]]
        x = norm(x) if self.placement == "post" else x
        streams = [x]
        for depth, layer in enumerate(self.layers, start=1):
            for f in self.branches(layer):
                if self.placement == "pre":
                    x = x + f(norm(x))
                elif self.placement == "post":
                    x = norm(x + f(x))
                elif self.placement == "peri":
                    x = x + norm(f(norm(x)))
                elif self.placement == "layernorm_scaling":
                    x = x + f(norm(x) / math.sqrt(depth))
            streams.append(x)
        return streams

    def loss(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.streams(idx)[-1]
        x = x if self.placement == "post" else norm(x)
        return F.cross_entropy((x @ self.head.T).flatten(0, 1), targets.flatten())
