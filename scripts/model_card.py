"""Write the model card (Mitchell et al. 2019) of an exported model from the files of its run."""

from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader

from data import tokenizers
from probe import causality
from training.checkpoint import Checkpoint, Meta
from training.run_folder import read_json

# The settings that the card lists, without folders and settings that only change what is logged.
OF_MODEL = {"model", "norm", "placement"}
SETTINGS = OF_MODEL | {"seed", "precision", "optim", "schedule", "train"}
OF_DATA = {"corpus", "tokenizer", "val_fraction"}


def cell(text: str) -> str:
    """Return text for a cell of the card's table."""
    return text.replace("|", "/")


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=False,  # it is Markdown
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {
    "cell": cell,
    "digits": "{:,}".format,
    "yaml": partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=10**6),
}


def files_of_run(loaded: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the contents of the JSON files of a checkpoint's run by their names without .json, empty if the
    checkpoint does not lie in the folder of its run."""
    folder = loaded.path.resolve().parent.parent
    names = ("status", "environment", "certificate")
    return {
        name: read_json(folder / f"{name}.json") if folder.name == loaded.meta.run else {} for name in names
    }


def text(meta: Meta, parameters: int, for_transformers: bool, files: dict[str, dict[str, Any]]) -> str:
    """Return the card of an exported checkpoint. ``files`` is the result of ``files_of_run``, with a
    certificate."""
    config = meta.config
    is_trained = not config.init_from or meta.step > 0
    settings = config.model_dump(by_alias=True, include=SETTINGS if is_trained else OF_MODEL)
    if is_trained:
        settings["data"] = config.data.model_dump(include=OF_DATA)
    answer = files["certificate"]["end"] or files["certificate"]["start"]
    front = {"library_name": "transformers"} if for_transformers else {}
    return TEMPLATES.get_template("model_card.md").render(
        front=front | {"pipeline_tag": "text-generation", "tags": ["normgpt", config.norm.name]},
        name=meta.run.replace("`", "'"),
        config=config,
        parameters=parameters,
        step=meta.step,
        tokens=meta.step * config.train.batch_size * config.model.block_size,
        weights=config.init_from,
        train_tokens=files["environment"].get("data", {}).get("train_tokens"),
        status=files["status"],
        causality=causality.describe(answer, "this model").removeprefix("causality: "),
        for_transformers=for_transformers,
        start=repr(tokenizers.from_spec(meta.tokenizer).start),
        max_new_tokens=min(50, config.model.block_size - 1),
        settings=settings,
    )
