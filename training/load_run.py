"""Load a trained model from a run, a checkpoint file, or ``init_from``.

model, tokenizer = load_run("runs/layernorm-pre-s0-1a2b3c4d")   # docs/runs.md
"""

from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import checked
from cli.schema import ModelSource
from data import tokenizers
from data.errors import CheckpointError, ConfigError
from training import checkpoint
from training.checkpoint import Checkpoint
from training.run_folder import read_status

if TYPE_CHECKING:
    from model import GPT


def load_run(folder: str | Path, which: str = "best", trust: str = "") -> "tuple[GPT, tokenizers.Tokenizer]":
    """Return the model of a run, in evaluation mode on the CPU, and its tokenizer.

    Args:
        which: "best" (lowest val/loss) or "last".
        trust: more packages whose classes the checkpoint may use, separated by commas.

    Raises:
        UserError: there is no such run, or it has no usable checkpoint.
    """
    source = dict.fromkeys(("checkpoint", "init_from")) | {"run": str(folder), "which": which}
    loaded = load(checked(ModelSource, source | {"runs_dir": "."}))
    tokenizer = tokenizers.from_spec(loaded.meta.tokenizer)
    return load_model(loaded, tokenizer.vocab_size, trust).eval(), tokenizer


def newest_run(runs_dir: str) -> Path:
    """Return the folder of the run that wrote its status last. Runs without a checkpoint count only if no run
    has one. Raises ConfigError if there is no run."""
    files = [*Path(runs_dir).glob("*/status.json")]
    files = [file for file in files if checkpoint.saved_steps(file.parent / "checkpoints")] or files
    if not files:
        raise ConfigError(f"runs_dir: {runs_dir} has no run; train one, or name one with run=FOLDER")
    return max(files, key=lambda file: file.stat().st_mtime).parent


def find_checkpoint(config: ModelSource) -> Path:
    """Return the file of a run's checkpoint. Raises ConfigError or CheckpointError if there is none."""
    if config.checkpoint is not None:
        return Path(config.checkpoint)
    folder = Path(config.run) if config.run is not None else newest_run(config.runs_dir)
    steps = checkpoint.saved_steps(folder / "checkpoints")
    if not steps:
        problem = "has no checkpoint" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {problem}; name the folder of a run that has a checkpoint")
    best = (read_status(folder).get("best") or {}).get("step")
    step = best if config.which == "best" and best in steps else steps[-1]
    return checkpoint.path_of(folder / "checkpoints", step)


def load(config: ModelSource) -> Checkpoint:
    """Load the checkpoint that ``config`` names; pretrained weights become a checkpoint of step 0. Raises
    ConfigError, CheckpointError or DataError."""
    if config.init_from is not None:
        return pretrained_checkpoint(config.init_from)
    path = find_checkpoint(config)
    try:
        return checkpoint.load(path)
    except CheckpointError:
        if path.exists() or config.checkpoint is not None:
            raise
        return checkpoint.load(find_checkpoint(config))  # the run is training, and has removed that file


def pretrained_checkpoint(name: str) -> Checkpoint:
    """Return the weights that ``init_from`` names, as a checkpoint of step 0."""
    from cli.compose import compose_all, quoted
    from interop.pretrained import pretrained

    [run] = compose_all([[quoted("init_from", name)]])
    weights = pretrained(name)
    spec = weights.tokenizer
    if spec is None:
        raise ConfigError(
            f"init_from: {name} has neither tokenizer.json nor the meta.json of its data; add one of them"
        )
    meta = checkpoint.Meta(step=0, config=run, tokenizer=spec, fingerprint="", run=name, best=None)
    vocab_size = tokenizers.from_spec(spec).vocab_size
    return Checkpoint(Path(name), meta, weights.tensors(run.model.block_size, vocab_size))


def load_model(loaded: Checkpoint, vocab_size: int, trust: str | None = None) -> "GPT":
    """Return a checkpoint's model. Its config may name our classes, torch's norms, and classes of the
    packages in ``trust``. Raises ConfigError as ``bind`` does; CheckpointError if its tensors do not fit."""
    from training.build import OWN_PACKAGES, build_model
    from training.checkpoint import restore_model
    from training.device import memory_explained

    others = [name.strip() for name in (trust or "").split(",") if name.strip()]
    with memory_explained(f"{loaded.path}: out of memory; use a smaller model"):
        model = build_model(loaded.meta.config, vocab_size, (*OWN_PACKAGES, *others))
        restore_model(model, loaded)
    return model
