"""Write the model card (Mitchell et al. 2019) of an exported model from the files of its run."""

from typing import Any

import yaml

from cli.schema import RunConfig
from data import tokenizers
from diagnostics import causality
from rundir.checkpoint_file import Checkpoint, Meta
from rundir.run_files import read_json
from system.terminal import escaped

# The settings that the card lists: no folders, and nothing that only changes what is logged.
OF_MODEL = {"model", "norm", "placement"}
SETTINGS = OF_MODEL | {"seed", "precision", "optim", "schedule", "train"}
OF_DATA = {"corpus", "tokenizer", "val_fraction"}

USES = {
    "hf": """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
prompt = tokenizer({start!r}, return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens={steps})[0]))
```""",
    "safetensors": "```sh\npython sample.py checkpoint=model.safetensors\n```",
}


def run_files(loaded: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the JSON files of a checkpoint's run, by name without .json; they are empty if the
    checkpoint is not in the folder of its run."""
    folder = loaded.path.resolve().parents[1]
    names = ("status", "environment", "certificate")
    return {
        name: read_json(folder / f"{name}.json") if folder.name == loaded.meta.run else {} for name in names
    }


def text(meta: Meta, parameters: int, form: str, files: dict[str, dict[str, Any]]) -> str:
    """Return the card of a checkpoint that is exported as ``form``. ``files`` is the result of ``run_files``,
    with a certificate."""
    config = meta.config
    untrained = config.init_from is not None and not meta.step
    train_tokens = files["environment"].get("data", {}).get("train_tokens")
    counted = f", {train_tokens:,} tokens for training" if train_tokens is not None else ""
    name = escaped(meta.run).replace("`", "'")
    rows = {
        "model": f"{config.model.n_layer} blocks of {config.model.n_embd} channels, {parameters:,} "
        f"parameters; {config.chosen()}",
        "trained": training_summary(config, meta.step),
        "text": f"{config.data.corpus}, tokenizer {config.data.tokenizer}{counted}",
        **losses(files["status"]),
        "looks at": causality.describe(files["certificate"], "this model").removeprefix("causality: "),
    }
    if untrained:
        del rows["text"]
    table = "\n".join(f"| {key} | {escaped(str(value)).replace('|', '/')} |" for key, value in rows.items())
    start = tokenizers.from_spec(meta.tokenizer).start
    use = USES[form].format(start=start, steps=min(50, config.model.block_size - 1))
    header = {"library_name": "transformers"} if form == "hf" else {}
    front = yaml.safe_dump(
        header | {"pipeline_tag": "text-generation", "tags": ["normgpt", config.norm.name]}
    )
    settings = config.model_dump(by_alias=True, include=OF_MODEL if untrained else SETTINGS)
    if not untrained:
        settings["data"] = config.data.model_dump(include=OF_DATA)
    listed = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=10**6)
    return (
        f"---\n{front}---\n# `{name}`\n\nA GPT made with normgpt, where normalization is a choice.\n\n"
        f"| | |\n|---|---|\n{table}\n\n## Use\n\n{use}\n\n"
        f"## Settings\n\n```yaml\n{listed}```\n"
    )


def training_summary(config: RunConfig, step: int) -> str:
    weights = f"the weights of {config.init_from}" if config.init_from else ""
    if not step:
        return f"not by normgpt: these are {weights}" if weights else "not yet"
    tokens = step * config.train.batch_size * config.model.block_size
    start = f", from {weights}" if weights else ""
    return f"{step:,} of {config.train.steps:,} steps, {tokens:,} tokens{start}; seed {config.seed}"


def losses(status: dict[str, Any]) -> dict[str, str]:
    """Return the card's rows about the validation losses that the run has measured."""
    best, rows = status.get("best"), {}
    if status.get("final") is not None:
        rows["val/full_loss"] = f"{status['final']:.4f} nats per token, the whole split, at the last step"
    if best:
        rows["best val/loss"] = f"{best['val/loss']:.4f} nats per token, at step {best['step']:,}"
    if status.get("state") == "diverged":
        rows["diverged"] = str(status.get("reason"))
    return rows
