"""A model of ours written in GPT-2's layout: config.json, and tensors by Hugging Face's names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli.schema import Component, RunConfig
from interop.gpt2_layout import GPT2, LAYER_NORMS, THEIR_ACTIVATIONS, entries

if TYPE_CHECKING:
    from torch import Tensor


def obstacles(config: RunConfig) -> list[str]:
    """Why a model is not one that GPT-2's layout has, each as its user would type it; none where it is."""
    model, final = config.model, config.model.final_norm
    keys = {
        f"norm={config.norm.name}": config.norm.target not in LAYER_NORMS,
        f"placement={config.placement.name}": config.placement.target != "model.placements.Pre",
        f"model.positions={model.positions}": model.positions != "learned",
        f"model.activation={model.activation}": model.activation not in THEIR_ACTIVATIONS,
        "model.embedding_scale=true": model.embedding_scale is True,
    }
    if isinstance(final, Component):
        keys[f"model.final_norm={final.name}"] = final != config.norm
    for key, component in (("embedding_norm", model.embedding_norm), ("qk_norm", model.qk_norm)):
        keys[f"model.{key}={component.name}"] = component.target != "torch.nn.Identity"
    return [key for key, stands in keys.items() if stands]


def described(config: RunConfig, vocab_size: int, end_of_text: int | None) -> dict[str, Any]:
    """The config.json of a model without ``obstacles``. ``end_of_text`` is a token's id."""
    model = config.model
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_positions": model.block_size,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_embd": model.n_embd,
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "tie_word_embeddings": model.tie,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), end_of_text),
    }


def as_theirs(tensors: Mapping[str, "Tensor"], said: GPT2) -> dict[str, "Tensor"]:
    """Our model's tensors as Hugging Face's file has them. A bias that ours does without is 0 there, and a
    gain 1."""
    import torch

    found = {}
    for entry in entries(said):
        own = tensors.get(entry.ours)
        if own is None:
            own = torch.full(entry.shape, float(entry.ours.endswith("weight")))
        elif entry.turned:
            own = own.T
        prefix = "" if entry.theirs.startswith("lm_head") else "transformer."
        found[prefix + entry.theirs] = own.contiguous()
    return found
