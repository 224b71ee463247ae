"""Export a trained model: a folder with its weights and a model card.

    python -m scripts.export run=runs/NAME format=hf out=FOLDER             for Hugging Face's transformers
    python -m scripts.export run=runs/NAME format=safetensors out=FOLDER    for sample.py

format=hf is GPT-2's layout, which AutoModelForCausalLM and AutoTokenizer load without our code; a model that
is not a GPT-2 is rejected. format=safetensors takes any model: the file is a checkpoint without the
optimizer's state, and is 1/3 as large. The checkpoint is chosen as in sample.py: run=, checkpoint=,
init_from=, which=."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cli.errors import CONF, one_line_errors
from cli.programs import read_literally
from cli.schema import ModelSource
from data import tokenizers
from data.errors import ConfigError
from data.files import new_folder
from interop import gpt2_layout, tokenizer_json
from scripts import gpt2_writer, model_card
from training import checkpoint as checkpoint_file
from training import load_run as load_model
from training.checkpoint import Checkpoint, Meta

if TYPE_CHECKING:
    from torch import Tensor


class ExportConfig(ModelSource):
    """Everything export needs; conf/export.yaml explains each key."""

    format: Literal["hf", "safetensors"]
    out: str
    trust: str | None


def write_huggingface(loaded: Checkpoint, tensors: "dict[str, Tensor]", folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer. Raises ConfigError if the model is not a
    GPT-2."""
    from safetensors.torch import save_file  # imports torch

    config, spec = loaded.meta.config, loaded.meta.tokenizer
    if obstacles := gpt2_writer.obstacles(config):
        raise ConfigError(
            f"format: hf is GPT-2's layout, which has no {', '.join(obstacles)}; give format=safetensors"
        )
    tokenizer = tokenizers.from_spec(spec)
    special = [*spec.get("special", ())]
    end_of_text = tokenizer.vocab_size - len(special) if special else None  # the first special token
    gpt2_config = gpt2_writer.gpt2_config(config, tokenizer.vocab_size, end_of_text)
    save_file(
        gpt2_writer.gpt2_tensors(tensors, gpt2_layout.GPT2.model_validate(gpt2_config)),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    contents: dict[str, dict[str, Any]] = {
        "config.json": gpt2_config,
        "tokenizer.json": tokenizer_json.to_tokenizer_json(spec),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.model.block_size,
            "clean_up_tokenization_spaces": False,
            **dict.fromkeys(("bos_token", "eos_token"), special[0] if special else None),
        },
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def without_private_settings(meta: Meta) -> Meta:
    """Return the metadata without the optimizer's state, the user's folders and the user's name at wandb."""
    config = meta.config

    def last_part(path: str | None) -> str | None:
        return path and Path(os.path.abspath(path)).name  # follows no link

    anonymous_values: dict[str, Any] = {
        "runs_dir": "runs",
        "init_from": last_part(config.init_from),
        "data": config.data.model_copy(update={"path": last_part(config.data.path), "cache": "data/cache"}),
        "wandb": config.wandb.model_copy(update={"entity": None, "group": None, "dir": "."}),
    }
    anonymous_config = config.model_copy(update=anonymous_values)
    return meta.model_copy(update={"config": anonymous_config, "run": last_part(meta.run), "optimizer": {}})


def main(config: ExportConfig) -> None:
    """Write the chosen checkpoint in the chosen format, with its card, to ``out``."""
    out = Path(config.out)
    if out.exists():
        raise ConfigError(f"out: {out} already exists; choose another folder")
    print("loading the model", file=sys.stderr, flush=True)
    loaded = load_model.load(config)
    from safetensors import SafetensorError

    from probe import causality  # imports torch, after wrong keys and paths are reported
    from training.checkpoint import model_tensors

    vocab_size = tokenizers.from_spec(loaded.meta.tokenizer).vocab_size
    model = load_model.load_model(loaded, vocab_size, config.trust)  # raises if the weights do not fit
    files = model_card.files_of_run(loaded)
    if not files["certificate"]:
        print("testing whether the model is causal", file=sys.stderr, flush=True)
        answer = causality.certificate(model, vocab_size, initial=False)
        files["certificate"] = {"start": answer, "end": None}
    loaded = Checkpoint(loaded.path, without_private_settings(loaded.meta), loaded.tensors)
    with new_folder(out) as folder:
        try:
            if config.format == "hf":
                write_huggingface(loaded, model_tensors(model), folder)
            else:
                checkpoint_file.write(folder / "model.safetensors", loaded.meta, model_tensors(model))
        except SafetensorError as error:
            raise ConfigError(f"out: {out}: cannot be written ({error}); make room") from None
        parameters = sum(p.numel() for p in model.parameters())
        page = model_card.text(loaded.meta, parameters, config.format, files)
        (folder / "README.md").write_text(page, encoding="utf-8")
        for file in folder.iterdir():
            file.chmod(0o644)  # safetensors makes its file readable by the owner only
    size = sum(file.stat().st_size for file in out.iterdir())
    what = f"{loaded.meta.run}, step {loaded.meta.step:,}"
    print(f"{out}: {what}, {size / 1e6:,.1f} MB; model card: README.md")


if __name__ == "__main__":
    with one_line_errors():
        main(read_literally(ExportConfig, CONF / "export.yaml", __doc__))
