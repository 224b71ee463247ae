"""A trained model for others: a folder with its weights and a card that says what it is.

    python -m scripts.export run=runs/NAME format=hf out=FOLDER             for Hugging Face's transformers
    python -m scripts.export run=runs/NAME format=safetensors out=FOLDER    for sample.py, weights alone

format=hf is GPT-2's layout, which AutoModelForCausalLM and AutoTokenizer load with no code of ours; a model
that is no GPT-2 is refused. format=safetensors takes any: it is a checkpoint of ours without the optimizer's
state, a third of its size. Which checkpoint is as for sample.py: run=, checkpoint=, init_from=, which=.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cli import app, schema
from data import tokenizers
from interop import gpt2_layout, tokenizer_json
from rundir import checkpoint_file, model_card
from rundir.checkpoint_file import Checkpoint, Meta
from scripts import gpt2_writer
from system.errors import ConfigError
from training.build import OURS
from training.load_model import load as load_chosen
from training.load_model import load_model

if TYPE_CHECKING:
    from torch import Tensor


class ExportConfig(schema.Chosen):
    """Everything that export needs; conf/export.yaml explains each key."""

    format: Literal["hf", "safetensors"]
    out: str
    trust: str | None


def as_huggingfaces(loaded: Checkpoint, tensors: "dict[str, Tensor]", folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer. Raises ConfigError where it is no GPT-2."""
    from safetensors.torch import save_file

    config, spec = loaded.meta.config, loaded.meta.tokenizer
    if found := gpt2_writer.obstacles(config):
        raise ConfigError(
            f"format: hf is GPT-2's layout, which has no {', '.join(found)}; give format=safetensors"
        )
    tokenizer = tokenizers.from_spec(spec)
    [*special] = spec.get("special", ())
    end_of_text = tokenizer.vocab_size - len(special) if special else None  # the first of them
    said = gpt2_writer.described(config, tokenizer.vocab_size, end_of_text)
    save_file(
        gpt2_writer.as_theirs(tensors, gpt2_layout.GPT2.model_validate(said)),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    about_tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.model.block_size,
        "clean_up_tokenization_spaces": False,
        **dict.fromkeys(("bos_token", "eos_token"), special[0] if special else None),
    }
    contents: dict[str, dict[str, Any]] = {
        "config.json": said,
        "tokenizer.json": tokenizer_json.described(spec),
        "tokenizer_config.json": about_tokens,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def as_weights_alone(loaded: Checkpoint, tensors: "dict[str, Tensor]", folder: Path) -> None:
    """Write model.safetensors, a checkpoint that nothing can go on from."""
    checkpoint_file.write(folder / "model.safetensors", loaded.meta, tensors)


def for_others(meta: Meta) -> Meta:
    """It without the optimizer's state, where its user has things, and who they are to wandb."""
    config = meta.config

    def name(path: str | None) -> str | None:
        return path and Path(path).name

    places: dict[str, Any] = {
        "runs_dir": "runs",
        "init_from": name(config.init_from),
        "data": config.data.model_copy(update={"path": name(config.data.path), "cache": "data/cache"}),
        "wandb": config.wandb.model_copy(update={"entity": None, "group": None, "dir": "."}),
    }
    changed: dict[str, Any] = {
        "config": config.model_copy(update=places),
        "run": name(meta.run),
        "optimizer": {},
    }
    return meta.model_copy(update=changed)


FORMATS: dict[str, Callable[[Checkpoint, "dict[str, Tensor]", Path], None]] = {
    "hf": as_huggingfaces,
    "safetensors": as_weights_alone,
}


@contextmanager
def made(out: Path) -> Iterator[Path]:
    """Inside, a folder that becomes ``out`` when all went well, and else is gone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield beside
        beside.chmod(0o755)  # mkdtemp's is for the owner alone
        for file in beside.iterdir():
            file.chmod(0o644)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@app.command("export", ExportConfig)
def main(config: ExportConfig) -> None:
    out = Path(config.out)
    if out.exists():
        raise ConfigError(f"out: {out} is there already; name another folder")
    loaded = load_chosen(config)
    from safetensors import SafetensorError

    from diagnostics import causality
    from training.state import model_tensors

    packages = OURS + ((config.trust,) if config.trust else ())
    vocab_size = tokenizers.from_spec(loaded.meta.tokenizer).vocab_size
    model = load_model(loaded, vocab_size, packages)  # which finds whatever does not fit
    said = model_card.of_run(loaded)
    said["certificate"] = said["certificate"] or causality.certificate(model, vocab_size)
    loaded = Checkpoint(loaded.path, for_others(loaded.meta), loaded.tensors)
    with made(out) as folder:
        try:
            FORMATS[config.format](loaded, model_tensors(model), folder)
        except SafetensorError as error:
            raise ConfigError(f"out: {out}: cannot be written ({error}); make room") from None
        parameters = sum(p.numel() for p in model.parameters())
        page = model_card.text(loaded.meta, parameters, config.format, said)
        (folder / "README.md").write_text(page, encoding="utf-8")
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {loaded.meta.run}, step {loaded.meta.step:,}, {size / 1e6:,.1f} MB; its card is README.md")


if __name__ == "__main__":
    main()
