"""Write the model card (Mitchell et al. 2019) of an exported model from the files of its run."""

import sys
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader

from data import tokenizers
from model import GPT
from probe import causality
from training.checkpoint import Checkpoint, Meta
from training.run_folder import read_json

# The settings that the card lists: no folders, and none that only change what is logged.
OF_MODEL = {"model", "norm", "placement"}
OF_TRAINING = {"seed", "precision", "optim", "schedule", "train"}
OF_DATA = {"corpus", "tokenizer", "val_fraction"}
LAYOUT: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
# nothing is escaped, because the card is Markdown
TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=False, **LAYOUT)


def text(loaded: Checkpoint, meta: Meta, model: GPT, for_transformers: bool) -> str:
    """Return the card of a checkpoint and its model. ``meta`` is its metadata without private settings. If
    the checkpoint lies in the folder of its run, the card also uses the files of the run."""
    config, tokenizer = meta.config, tokenizers.from_spec(meta.tokenizer)
    folder = loaded.path.resolve().parent.parent
    files = {
        name: read_json(folder / f"{name}.json") if folder.name == loaded.meta.run else {}
        for name in ("status", "environment", "certificate")
    }
    answer = files["certificate"].get("end") or files["certificate"].get("start")
    if not answer:
        print("testing whether the model is causal", file=sys.stderr, flush=True)
        answer = causality.certificate(model, tokenizer.vocab_size, initial=False)
    is_trained = not config.init_from or meta.step > 0
    settings = config.model_dump(by_alias=True, include=OF_MODEL | (OF_TRAINING if is_trained else set()))
    if is_trained:
        settings["data"] = config.data.model_dump(include=OF_DATA)
    front: dict[str, Any] = {"library_name": "transformers"} if for_transformers else {}
    front |= {"pipeline_tag": "text-generation", "tags": ["normgpt", config.norm.name]}
    return TEMPLATES.get_template("model_card.md.jinja").render(
        front=yaml.safe_dump(front, sort_keys=False),
        name=meta.run.replace("`", "'"),
        config=config,
        is_trained=is_trained,
        parameters=sum(p.numel() for p in model.parameters()),
        step=meta.step,
        tokens=meta.step * config.train.batch_size * config.model.block_size,
        train_tokens=files["environment"].get("data", {}).get("train_tokens"),
        status=files["status"],
        causality=causality.describe(answer, "this model").removeprefix("causality: "),
        for_transformers=for_transformers,
        start=repr(tokenizer.start),
        max_new_tokens=min(50, config.model.block_size - 1),
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=10**6),
    )
