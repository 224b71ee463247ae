"""Convert a trained model to GPT-2's layout: config.json, and tensors by Hugging Face's names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli.schema import Component, RunConfig
from interop.gpt2_layout import GPT2, GPT2_ACTIVATIONS, LAYER_NORMS, entries

if TYPE_CHECKING:
    from torch import Tensor


def obstacles(config: RunConfig) -> list[str]:
    """Return the settings that GPT-2's layout cannot express, as KEY=VALUE."""
    model, final = config.model, config.model.final_norm
    keys = {
        f"norm={config.norm.name}": config.norm.target not in LAYER_NORMS,
        f"placement={config.placement.name}": config.placement.target != "model.placements.Pre",
        f"model.positions={model.positions}": model.positions != "learned",
        f"model.activation={model.activation}": model.activation not in GPT2_ACTIVATIONS,
        "model.embedding_scale=true": model.embedding_scale is True,
    }
    if (eps := config.norm.options.get("eps") or 0) >= 1:  # transformers refuses it
        keys[f"norm.eps={eps:g}"] = True
    if isinstance(final, Component):
        keys[f"model.final_norm={final.name}"] = final != config.norm
    for key, component in (("embedding_norm", model.embedding_norm), ("qk_norm", model.qk_norm)):
        keys[f"model.{key}={component.name}"] = component.target != "torch.nn.Identity"
    return [key for key, is_obstacle in keys.items() if is_obstacle]


def gpt2_config(config: RunConfig, vocab_size: int, end_of_text: int | None) -> dict[str, Any]:
    """Return the config.json of a model without ``obstacles``. ``end_of_text`` is a token's id."""
    model = config.model
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_positions": model.block_size,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_embd": model.n_embd,
        "activation_function": GPT2_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "tie_word_embeddings": model.tie,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), end_of_text),
    }


def gpt2_tensors(tensors: Mapping[str, "Tensor"], config: GPT2) -> dict[str, "Tensor"]:
    """Return our model's tensors in Hugging Face's layout. A missing bias becomes 0, a missing gain 1."""
    import torch  # here, as export reports a wrong key before torch is imported

    renamed = {}
    for entry in entries(config):
        tensor = tensors.get(entry.our_name)
        if tensor is None:
            tensor = torch.full(entry.shape, 1.0 if entry.our_name.endswith("weight") else 0.0)
        elif entry.transposed:
            tensor = tensor.T
        prefix = "" if entry.gpt2_name.startswith("lm_head") else "transformer."
        renamed[prefix + entry.gpt2_name] = tensor.contiguous()
    return renamed
