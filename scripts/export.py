"""Export a trained model: a folder with its weights, its tokenizer and a model card.

    python -m scripts.export run=runs/NAME out=FOLDER

A model with LayerNorm, placement=pre and learned positions is a GPT-2. It becomes a folder that transformers
loads without our code, by AutoModelForCausalLM and AutoTokenizer. Any other model becomes a checkpoint
without the optimizer's state, for sample.py checkpoint=FOLDER/model.safetensors. init_from=FOLDER reads both.
The keys run=, checkpoint=, init_from= and which= choose what is exported, as in sample.py."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CONF, one_line_errors
from cli.programs import read_literally
from cli.schema import Component, ModelSource, RunConfig
from data import tokenizers
from data.errors import ConfigError
from data.files import new_folder
from interop.pretrained import ACTIVATIONS, WEIGHTS, require_transformers
from training import checkpoint as checkpoint_file
from training.checkpoint import Meta
from training.load_run import load, load_model

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORMS = ("model.norms.LayerNorm", "torch.nn.LayerNorm")
GPT2_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # gelu_tanh: gelu_new


class ExportConfig(ModelSource):
    """Everything export needs; conf/export.yaml explains each key."""

    out: str
    trust: str | None


def unlike_gpt2(config: RunConfig) -> list[str]:
    """Return the settings that GPT-2's layout cannot express, as KEY=VALUE."""
    model = config.model
    obstacles = {
        f"norm={config.norm.name}": config.norm.target not in LAYER_NORMS,
        f"placement={config.placement.name}": config.placement.target != "model.placements.Pre",
        f"model.positions={model.positions}": model.positions != "learned",
        f"model.activation={model.activation}": model.activation not in GPT2_ACTIVATIONS,
        "model.embedding_scale=true": model.embedding_scale is True,
    }
    if isinstance(model.final_norm, Component):
        obstacles[f"model.final_norm={model.final_norm.name}"] = model.final_norm != config.norm
    for key, norm in (("embedding_norm", model.embedding_norm), ("qk_norm", model.qk_norm)):
        obstacles[f"model.{key}={norm.name}"] = norm.target != "torch.nn.Identity"
    return [setting for setting, is_obstacle in obstacles.items() if is_obstacle]


def write_for_transformers(meta: Meta, tensors: "dict[str, Tensor]", folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer of a GPT-2."""
    from safetensors import SafetensorError
    from transformers import GPT2Config, GPT2LMHeadModel

    from interop.gpt2 import by_our_names
    from interop.tokenizer import to_hf

    tokenizer, model = to_hf(meta.tokenizer), meta.config.model
    special = next(iter(meta.tokenizer.get("special", ())), None)  # <|endoftext|>
    end_of_text = special and tokenizer.token_to_id(special)
    given: dict[str, Any] = {key: getattr(model, key) for key in ("n_layer", "n_head", "n_embd")}
    given |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout)
    settings = GPT2Config(
        **given,
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=model.block_size,
        activation_function=GPT2_ACTIVATIONS[model.activation],
        layer_norm_epsilon=meta.config.norm.options.get("eps", 1e-5),
        tie_word_embeddings=model.tie,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
    )
    gpt2 = GPT2LMHeadModel(settings)
    for name, parameter in by_our_names(dict(gpt2.named_parameters())).items():
        if name in tensors:  # transformers initializes a missing bias with 0 and a missing gain with 1
            parameter.copy_(tensors[name])
    try:
        gpt2.save_pretrained(folder)
    except SafetensorError as error:
        raise ConfigError(f"out: cannot be written ({error}); make room") from None
    tokenizer.save(str(folder / "tokenizer.json"))
    of_tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.block_size}
    of_tokenizer |= {"clean_up_tokenization_spaces": False, "bos_token": special, "eos_token": special}
    (folder / "tokenizer_config.json").write_text(json.dumps(of_tokenizer, indent=1), encoding="utf-8")


def without_private_settings(meta: Meta) -> Meta:
    """Return the metadata without the user's folders and the user's name at wandb."""

    def name_of(path: str | None) -> str | None:
        return path and Path(os.path.abspath(path)).name  # follows no link

    config, data = meta.config, meta.config.data
    anonymous = config.model_copy(
        update={
            "runs_dir": "runs",
            "init_from": name_of(config.init_from),
            "data": data.model_copy(update={"path": name_of(data.path), "cache": "data/cache"}),
            "wandb": config.wandb.model_copy(update={"entity": None, "group": None, "dir": "."}),
        }
    )
    return meta.model_copy(update={"config": anonymous, "run": name_of(meta.run)})


def main(config: ExportConfig) -> None:
    """Write the chosen checkpoint and its card to ``out``."""
    out = Path(config.out)
    if out.exists():
        raise ConfigError(f"out: {out} already exists; choose another folder")
    loaded = load(config)
    obstacles = unlike_gpt2(loaded.meta.config)
    if not obstacles:
        require_transformers("out: an export of a GPT-2")
    from scripts import model_card  # only here, as it imports torch: keys and paths are checked first

    vocab_size = tokenizers.from_spec(loaded.meta.tokenizer).vocab_size
    model = load_model(loaded, vocab_size, config.trust)
    meta, tensors = without_private_settings(loaded.meta), checkpoint_file.model_tensors(model)
    with new_folder(out) as folder:
        if obstacles:
            checkpoint_file.write(folder / WEIGHTS, meta, tensors)
        else:
            write_for_transformers(meta, tensors, folder)
        card = model_card.text(loaded, meta, model, not obstacles)
        (folder / "README.md").write_text(card, encoding="utf-8")
        for file in folder.iterdir():
            file.chmod(0o644)  # safetensors makes its file readable by the owner only
    why = f"not for transformers, as GPT-2 has no {', '.join(obstacles)}" if obstacles else "for transformers"
    print(f"{out}: {meta.run}, step {meta.step:,}, {why}; model card: README.md")


if __name__ == "__main__":
    with one_line_errors():
        main(read_literally(ExportConfig, CONF / "export.yaml", __doc__))
