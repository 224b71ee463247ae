"""What an exported model is, as the README.md of its folder: a model card (Mitchell et al. 2019), made of the
run's own files and of nothing else."""

from typing import Any

import yaml

from cli.schema import RunConfig
from data import tokenizers
from diagnostics import causality
from rundir.checkpoint_file import Checkpoint, Meta
from rundir.schema import read_json
from system.terminal import escaped

# What a stranger needs to know of a run's settings; not where it was, nor how it was watched.
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


def of_run(loaded: Checkpoint) -> dict[str, dict[str, Any]]:
    """What the files of a checkpoint's run say, by their names without .json; nothing where the run is not
    around it."""
    folder = loaded.path.resolve().parents[1]
    names = ("status", "environment", "certificate")
    return {
        name: read_json(folder / f"{name}.json") if folder.name == loaded.meta.run else {} for name in names
    }


def text(meta: Meta, parameters: int, form: str, said: dict[str, dict[str, Any]]) -> str:
    """The card of a checkpoint.

    Args:
        parameters: how many there are.
        form: of the export, ``hf`` or ``safetensors``.
        said: as ``of_run`` has it, with a certificate.
    """
    config, theirs = meta.config, meta.config.init_from is not None and not meta.step
    name = escaped(meta.run).replace("`", "'")
    rows = {
        "model": f"{config.model.n_layer} blocks of {config.model.n_embd} channels, {parameters:,} "
        f"parameters; {config.chosen()}",
        "trained": trained(config, meta.step),
        **({} if theirs else {"text": about_text(config, said["environment"])}),
        **losses(said["status"]),
        "looks at": causality.describe(said["certificate"], "this model").removeprefix("causality: "),
    }
    table = "\n".join(f"| {key} | {escaped(str(value)).replace('|', '/')} |" for key, value in rows.items())
    start = tokenizers.from_spec(meta.tokenizer).start
    use = USES[form].format(start=start, steps=min(50, config.model.block_size - 1))
    header = {"library_name": "transformers"} if form == "hf" else {}
    front = yaml.safe_dump(
        header | {"pipeline_tag": "text-generation", "tags": ["normgpt", config.norm.name]}
    )
    settings = config.model_dump(by_alias=True, include=OF_MODEL if theirs else SETTINGS)
    if not theirs:
        settings["data"] = config.data.model_dump(include=OF_DATA)
    listed = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=10**6)
    return (
        f"---\n{front}---\n# `{name}`\n\nA GPT made with normgpt, where normalization is a choice.\n\n"
        f"| | |\n|---|---|\n{table}\n\n## Use\n\n{use}\n\n"
        f"## Settings\n\n```yaml\n{listed}```\n"
    )


def trained(config: RunConfig, step: int) -> str:
    if not step:
        return (
            f"not by normgpt: these are the weights of {config.init_from}" if config.init_from else "not yet"
        )
    tokens = step * config.train.batch_size * config.model.block_size
    begun = f", from the weights of {config.init_from}" if config.init_from else ""
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
