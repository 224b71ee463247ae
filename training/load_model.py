"""Load the model that a program is to use: that of a run, of a checkpoint file, or of ``init_from``."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cli import app
from cli.sample_schema import ModelSource
from cli.schema import RunConfig
from data import tokenizers
from interop.pickle_hint import conversion_advice, first_pickle
from interop.pretrained import pretrained
from rundir import checkpoint_file
from rundir.checkpoint_file import Checkpoint
from rundir.find_run import newest_run
from rundir.folder import read_status
from system.errors import CheckpointError, ConfigError, NoCheckpointError, UserError

if TYPE_CHECKING:
    from model import GPT
    from model.placements import Placement

ATTEMPTS = 10  # to read a checkpoint of a run that is training


def find_checkpoint(config: ModelSource) -> Path:
    """Return the file of a run's checkpoint. Raises ConfigError or CheckpointError if there is none."""
    if config.checkpoint is not None:
        return Path(config.checkpoint)
    folder = Path(config.run) if config.run is not None else newest_run(config.runs_dir)
    steps = checkpoint_file.saved_steps(folder / "checkpoints")
    if not steps:
        pickle = first_pickle(folder)
        problem = "has no checkpoint" if folder.exists() else "no such folder"
        missing = f"{folder}: {problem}; name the folder of a run that has a checkpoint"
        raise CheckpointError(conversion_advice(pickle) if pickle else missing)
    best = (read_status(folder).get("best") or {}).get("step")
    return checkpoint_file.path_of(
        folder / "checkpoints", best if config.which == "best" and best in steps else steps[-1]
    )


def load(config: ModelSource) -> Checkpoint:
    """Load the checkpoint that ``config`` names; pretrained weights become a checkpoint of step 0. Raises
    ConfigError, CheckpointError or DataError."""
    if (name := config.init_from) is None:
        return load_saved(config)
    [run] = app.composed_all("config", RunConfig, [[app.text_override("init_from", name)]])
    weights = pretrained(name)
    spec = weights.tokenizer
    if spec is None:
        raise ConfigError(
            f"init_from: {name} has neither tokenizer.json nor the meta.json of its data; add one of them"
        )
    meta = checkpoint_file.Meta(step=0, config=run, tokenizer=spec, fingerprint="", run=name, optimizer={})
    vocab_size = tokenizers.from_spec(spec).vocab_size
    return Checkpoint(Path(name), meta, weights.tensors(run.model.block_size, vocab_size))


def load_saved(config: ModelSource) -> Checkpoint:
    """Load the checkpoint of a run. Raises ConfigError or CheckpointError."""
    for _ in range(ATTEMPTS if config.checkpoint is None else 0):
        with suppress(NoCheckpointError):  # a run in training has removed the file, and has a newer one
            return checkpoint_file.load(find_checkpoint(config))
    return checkpoint_file.load(find_checkpoint(config))


def load_model(checkpoint: Checkpoint, vocab_size: int, *trusted: str | None) -> "GPT":
    """Return a checkpoint's model; its config may name our classes, torch's norms, and classes of ``trusted``
    packages, separated by commas. Raises ConfigError as ``bind`` does, or CheckpointError if its tensors do
    not fit its config."""
    from training.build import OWN_PACKAGES, build_model
    from training.memory import explained_as
    from training.state import restore_model

    others = [name.strip() for text in trusted for name in (text or "").split(",")]
    packages = (*OWN_PACKAGES, *filter(None, others))
    try:
        with explained_as(f"{checkpoint.path}: out of memory; use a smaller model"):
            check_sizes(checkpoint, vocab_size, packages)
            model = build_model(checkpoint.meta.config, vocab_size, packages)
            restore_model(model, checkpoint)
    except UserError:
        raise
    except Exception as error:  # a class may raise anything if its options do not make sense
        why = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint.path}: invalid config ({why}); use another checkpoint") from error
    return model


def check_sizes(checkpoint: Checkpoint, vocab_size: int, packages: tuple[str, ...]) -> None:
    """Check that a checkpoint holds at least as many numbers as the model of its config would.

    Raises CheckpointError, or what the classes of its norms raise.
    """
    import torch

    from training.build import OWN_PACKAGES, instances
    from training.state import OPTIMIZER, model_tensors

    sizes = checkpoint.meta.config.model
    n_stored = sum(t.numel() for key, t in checkpoint.tensors.items() if not key.startswith(OPTIMIZER))

    def check(part: str, count: int) -> None:
        if count > n_stored:
            raise CheckpointError(
                f"{checkpoint.path}: its config describes a {part} of {count:,} parameters, but it holds "
                f"{n_stored:,} numbers; use another checkpoint"
            )

    positions = sizes.block_size if sizes.positions == "learned" else 0
    check("model", sizes.n_embd * (vocab_size + positions + 12 * sizes.n_layer * sizes.n_embd))
    try:
        with torch.device("meta"):  # takes no memory
            parts = dict(instances(checkpoint.meta.config, packages))
        placement: Placement = parts.pop("placement")
        slots = [placement.slots(layer, site) for layer in range(sizes.n_layer) for site in ("attn", "mlp")]
    except UserError:
        raise
    except Exception:
        if packages == OWN_PACKAGES:
            raise
        return  # a trusted class may need its numbers to be made, or wire its module itself
    copies = {"norm": sum(s.pre + s.out + s.post for s in slots), "model.qk_norm": 2 * sizes.n_layer}
    for key, norm in parts.items():
        check(key, copies.get(key, 1) * sum(tensor.numel() for tensor in model_tensors(norm).values()))
