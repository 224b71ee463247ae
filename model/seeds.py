"""Seeds of random streams: every draw is a pure function of (seed, purpose, place).

So no draw depends on earlier draws: a resumed run needs no stored generator state, evaluation cannot
shift the training data, and two runs with the same seed see the same batches and initial weights, whatever
their norm.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from model.embeddings import Table
from model.layers import Linear

M = TypeVar("M", bound=nn.Module)


def seed_for(seed: int, stream: str, *where: int | str) -> int:
    """Return the 63-bit seed of one stream, e.g. ``seed_for(0, "dropout", step, micro_batch)``.

    The seed is a hash, not a sum, so the streams of seeds s and s+1 share nothing.
    """
    key = json.dumps([seed, stream, *where]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def seed_torch(seed: int) -> None:
    """Seed torch's default generators, of the CPU and of the GPU in use. ``torch.manual_seed`` would take
    0.25 ms a step, most of it for kinds of GPU that the machine does not have."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def drawing(seed: int, path: str) -> Iterator[None]:
    """Context manager: what torch draws on the CPU depends only on the seed and on ``path``, a place in the
    model."""
    with torch.random.fork_rng(devices=[]):  # saves only the CPU's generator, so no other may be seeded
        torch.default_generator.manual_seed(seed_for(seed, "init", path))
        yield


def drawn(module: M, path: str, seed: int) -> M:
    """Draw the weight of every Linear and Table in ``module``, each from its own stream (seed, "init", name);
    ``path`` begins these names; it is usually the module's name in the model. Return the module."""
    for name, part in module.named_modules():
        if isinstance(part, Linear | Table):
            stream = seed_for(seed, "init", ".".join(filter(None, (path, name, "weight"))))
            part.reset_parameters(torch.Generator().manual_seed(stream))
    return module
