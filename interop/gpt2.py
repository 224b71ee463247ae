"""Load the parameters of transformers' ``GPT2LMHeadModel`` under the names of our model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, logging

from data.errors import ConfigError

logging.set_verbosity_error()
logging.disable_progress_bar()

# part of a name in transformers -> the same part in our model
NAMES = {
    "transformer.wte": "embed.tokens",
    "transformer.wpe": "embed.positions",
    "transformer.h.": "blocks.",
    ".attn.c_attn": ".attn.branch.qkv",
    ".attn.c_proj": ".attn.branch.proj",
    ".mlp.c_fc": ".mlp.branch.fc",
    ".mlp.c_proj": ".mlp.branch.proj",
    ".ln_1": ".attn.pre",
    ".ln_2": ".mlp.pre",
    "transformer.ln_f": "final",
    "lm_head": "head",
}


def by_our_names(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of a GPT-2's parameters, with the names and shapes of our model. transformers stores the
    matrix of a linear map as (in, out), our model as (out, in)."""
    ours = {}
    for name, parameter in parameters.items():
        is_linear = ".c_" in name and parameter.ndim == 2
        for theirs, our in NAMES.items():
            name = name.replace(theirs, our)
        ours[name] = parameter.detach().T if is_linear else parameter.detach()
    return ours


def load(files: Sequence[Path], vocab_size: int, architecture: Mapping[str, Any]) -> dict[str, Tensor]:
    """Load a GPT-2's safetensors files. Return the parameters in fp32, under the names of our model.

    Only these files are read: an index beside them could name others. Raises ConfigError if a file is
    damaged, or if the tensors are not those of a GPT-2 of this ``architecture``."""
    where = f"init_from: {files[0].parent}"
    try:
        tensors = {name: tensor.float() for file in files for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ConfigError(f"{where}: cannot be loaded ({error}); name another folder") from None
    tensors = {  # without the constant masks of attention, which old files have
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
        for name, tensor in tensors.items()
        if not re.search(r"\.attn\.(masked_)?bias$", name)
    }
    sizes = {"n_positions": architecture["model.block_size"], "vocab_size": vocab_size}
    sizes |= {key: architecture[f"model.{key}"] for key in ("n_layer", "n_head", "n_embd")}
    tie = architecture["model.tie"]
    with torch.device("meta"):
        expected = dict(GPT2LMHeadModel(GPT2Config(**sizes, tie_word_embeddings=tie)).named_parameters())
    head, tokens = (tensors.get(name) for name in ("lm_head.weight", "transformer.wte.weight"))
    if tie and head is not None and tokens is not None and torch.equal(head, tokens):
        del tensors["lm_head.weight"]  # the same matrix twice
    shapes, wanted = ({n: t.shape for n, t in each.items()} for each in (tensors, expected))
    if wrong := [name for name in sorted(shapes | wanted) if shapes.get(name) != wanted.get(name)]:
        raise ConfigError(f"{where}: config.json and weights disagree on {wrong[0]}; name another folder")
    return by_our_names(tensors)
