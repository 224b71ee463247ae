"""What an exported model is, as the README.md of its folder: a model card (Mitchell et al. 2019), made of the
run's own files and of nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from data import tokenizers
from diagnostics import causality
from plain.files import read_json
from plain.terminal import escaped
from training.checkpoint import Checkpoint
from training.config import RunConfig

# What a stranger needs to know of a run's settings; not where it was, nor how it was watched.
OF_MODEL = {"model", "norm", "placement"}
SETTINGS = OF_MODEL | {"seed", "precision", "optim", "schedule", "train"}
OF_DATA = {"corpus", "tokenizer", "val_fraction"}

USES = {
    "hf": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
prompt = tokenizer({start!r}, return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens={steps})[0]))
""",
    "safetensors": "# python sample.py checkpoint=model.safetensors\n",
}


def text(loaded: Checkpoint, form: str, certificate: Callable[[], dict[str, Any]]) -> str:
    """The card of a checkpoint.

    Args:
        form: of the export, ``hf`` or ``safetensors``.
        certificate: makes its certificate, where the run has kept none.
    """
    meta, config = loaded.meta, loaded.meta.config
    folder = loaded.path.parent.parent if loaded.path.parent.name == "checkpoints" else Path()
    of_run = folder.name == meta.run
    status = read_json(folder / "status.json") if of_run else {}
    environment = read_json(folder / "environment.json") if of_run else {}
    kept = (read_json(folder / "certificate.json") if of_run else {}) or certificate()
    numbers = sum(t.numel() for name, t in loaded.tensors.items() if not name.startswith("optimizer/"))
    name = escaped(meta.run).replace("`", "'")
    rows = {
        "model": f"{config.model.n_layer} blocks of {config.model.n_embd} channels, {numbers:,} parameters; "
        f"{config.chosen()}",
        "trained": trained(config, meta.step),
        "text": about_text(config, environment),
        **losses(status),
        "looks at": causality.in_words(kept, "this model").removeprefix("causality: "),
    }
    table = "\n".join(f"| {key} | {escaped(str(value)).replace('|', '/')} |" for key, value in rows.items())
    start = tokenizers.from_spec(meta.tokenizer).start
    use = USES[form].format(start=start, steps=min(50, config.model.block_size - 1))
    header = {"library_name": "transformers"} if form == "hf" else {}
    front = yaml.safe_dump(
        header | {"pipeline_tag": "text-generation", "tags": ["normgpt", config.norm.name]}
    )
    settings = config.model_dump(by_alias=True, include=SETTINGS if meta.step else OF_MODEL)
    if meta.step:
        settings["data"] = config.data.model_dump(include=OF_DATA)
    listed = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=10**6)
    return (
        f"---\n{front}---\n# `{name}`\n\nA GPT made with normgpt, where normalization is a choice.\n\n"
        f"| | |\n|---|---|\n{table}\n\n## Use\n\n```python\n{use}```\n\n"
        f"## Settings\n\n```yaml\n{listed}```\n"
    )


def trained(config: RunConfig, step: int) -> str:
    source = Path(config.init_from).name if config.init_from else ""
    if not step:
        return f"not by normgpt: these are the weights of {source}" if source else "not yet"
    tokens = step * config.train.batch_size * config.model.block_size
    begun = f", from the weights of {source}" if source else ""
    return f"{step:,} of {config.train.steps:,} steps, {tokens:,} tokens{begun}; seed {config.seed}"


def about_text(config: RunConfig, environment: dict[str, Any]) -> str:
    data = environment.get("data", {})
    counted = f", {data['train_tokens']:,} tokens for training" if "train_tokens" in data else ""
    return f"{config.data.corpus}, tokenizer {config.data.tokenizer}{counted}"


def losses(status: dict[str, Any]) -> dict[str, str]:
    """What its run measured on the validation split, as far as it did."""
    best, found = status.get("best"), {}
    if status.get("final") is not None:
        found["val/full_loss"] = (
            f"{float(status['final']):.4f} nats per token, the whole split, at the last step"
        )
    if best:
        found["best val/loss"] = f"{best['val/loss']:.4f} nats per token, at step {best['step']:,}"
    if status.get("state") == "diverged":
        found["diverged"] = str(status.get("reason"))
    return found
