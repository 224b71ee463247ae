"""Folders that transformers writes and reads."""

from pathlib import Path
from typing import Any

import torch

from interop.tokenizer import to_hf

SMALL = {"vocab_size": 61, "n_positions": 64, "n_layer": 2, "n_head": 2, "n_embd": 16}


def theirs(**changed: Any) -> Any:
    """Return a GPT2LMHeadModel with weights of std 0.2; at GPT-2's 0.02 a wrong GELU would go unnoticed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(**SMALL | ends | changed)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(mean=1.0 if "ln_" in name and "weight" in name else 0.0, std=0.2, generator=generator)
    return model


def saved(folder: Path, chars: str = "", **changed: Any) -> Any:
    """Save a model of ``theirs`` in a folder, with a tokenizer of ``chars`` or of vocab_size characters."""
    model = theirs(**({"vocab_size": len(chars)} if chars else {}) | changed)
    model.save_pretrained(folder)
    chars = chars or "".join(map(chr, range(32, 32 + model.config.vocab_size)))
    to_hf({"kind": "char", "chars": chars}).save(str(folder / "tokenizer.json"))
    return model


def loaded(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model and tokenizer of a folder, without network or remote code."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    return (
        AutoModelForCausalLM.from_pretrained(folder, **offline).eval(),
        AutoTokenizer.from_pretrained(folder, **offline),
    )


def greedy(model: Any, ids: list[int], n: int) -> list[int]:
    """Return the n tokens that transformers' generate appends to ``ids`` greedily."""
    idx = torch.tensor([ids])
    tokens = model.generate(idx, attention_mask=torch.ones_like(idx), max_new_tokens=n, do_sample=False)
    return tokens[0, len(ids) :].tolist()
