"""The parameters of transformers' ``GPT2LMHeadModel`` by the names of our model."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GPT2LMHeadModel, logging

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


def parameters_by_our_names(model: GPT2LMHeadModel) -> dict[str, Tensor]:
    """Return views of a GPT-2's parameters in the shapes of our model; transformers stores the matrix of a
    linear map as (in, out). A tied head appears once, as the embedding."""
    parameters = {}
    for name, parameter in model.named_parameters():
        is_linear = ".c_" in name and parameter.ndim == 2
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        parameters[name] = parameter.detach().T if is_linear else parameter.detach()
    return parameters


def load(folder: Path) -> dict[str, Tensor]:
    """Return the parameters, fp32, of the GPT-2 in a folder. Raises ConfigError if a file is damaged or the
    tensors are not those of config.json."""
    load_model: Any = GPT2LMHeadModel.from_pretrained  # its hints do not know output_loading_info
    options = {"local_files_only": True, "use_safetensors": True, "ignore_mismatched_sizes": True}
    try:
        model, report = load_model(folder, dtype="float32", output_loading_info=True, **options)
    except Exception as error:  # transformers may raise anything at a damaged file
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"init_from: {folder}: cannot be loaded ({why}); name another folder") from None
    wrong = {*report["missing_keys"], *report["unexpected_keys"]} | {n for n, *_ in report["mismatched_keys"]}
    if model.config.tie_word_embeddings and model.lm_head.weight is not model.transformer.wte.weight:
        wrong.add("lm_head.weight")  # both are in the file, and differ
    if wrong:
        raise ConfigError(
            f"init_from: {folder}: config.json and weights disagree on {min(wrong)}; name another"
        )
    return parameters_by_our_names(model)
