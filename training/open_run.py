"""The tokens and the folder of a run. Torch is imported only if the run has to be trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.schema import RunConfig
from data.errors import ConfigError
from data.prepared import Prepared, prepare
from training.ddp import Ranks
from training.environment import asked_for, machine
from training.identity import folder_of
from training.run_folder import Run, has_ended, read_json


def load_tokens(config: RunConfig, ranks: Ranks) -> Prepared:
    """Return the tokens of a run, prepared now if the cache lacks them: once on each machine.

    Raises:
        UserError: as ``tokens_of`` does; or a split is too short for the model's context.
    """
    with ranks.first_of_machine_first():
        tokens = tokens_of(config)
    tokens.check_length(config.model.block_size)
    return tokens


def tokens_of(config: RunConfig) -> Prepared:
    """Return the tokens of a run, prepared now if the cache lacks them.

    Raises:
        ConfigError: the weights of ``init_from`` were trained with another tokenizer, or have none.
        DataError: the text is missing, or a prepared file is damaged.
    """
    if config.init_from is None:
        if config.data.tokenizer == "init_from":
            raise ConfigError(
                "data.tokenizer: init_from is that of pretrained weights; also give init_from=…"
            )
        return prepare(**config.data.model_dump())
    from interop.pretrained import pretrained  # here: few runs need it

    weights, spec = pretrained(config.init_from), None
    if config.data.tokenizer == "init_from":
        spec = weights.tokenizer
        if spec is None:
            raise ConfigError(f"data.tokenizer: {weights.name} lacks a tokenizer.json or meta.json; add one")
    data = prepare(**config.data.model_dump(), spec=spec)
    weights.check_vocabulary(data.tokenizer.vocab_size)
    if weights.tokenizer not in (None, data.tokenizer.spec):
        raise ConfigError(
            f"data.tokenizer: {weights.name} was trained with another tokenizer than this text's; "
            "give data.tokenizer=init_from"
        )
    return data


@contextmanager
def open_run(config: RunConfig, tokens: Prepared, ranks: Ranks) -> Iterator[tuple[Run, bool]]:
    """Context manager: yield the run, whose folder's name identifies the result, and whether it had ended.
    An existing folder is locked, unless its run has ended. Whether it had is asked twice: first
    of the folders of both precisions, which needs no torch; then of the folder that ``auto`` means here.

    Raises:
        ConfigError: another process trains this run, or the device is not available.
    """
    ended = None if config.fresh else ended_folder(config, tokens.fingerprint)
    if name := ranks.broadcast(str(ended) if ended else None):
        yield Run(Path(name), config, writes=False), True
        return
    counts = f"{len(tokens.train):,} training tokens, vocabulary of {tokens.tokenizer.vocab_size}"
    print(f"{config.label()} seed={config.seed}: {counts}", flush=True)
    from training import device  # imports torch

    compute = device.choose(config.device, config.precision)
    folder = folder_of(config, compute.precision, tokens.fingerprint)
    if not config.fresh and ranks.broadcast(has_ended(folder)):
        yield Run(folder, config, writes=False), True
        return
    with Run(folder, config, writes=ranks.first) as run:
        yield run, False
    ranks.broadcast()  # waits until rank 0 has written how the run ended


def ended_folder(config: RunConfig, fingerprint: str) -> Path | None:
    """Return the folder of this run if it has ended and torch is not needed to find it, else None: resolving
    ``precision=auto`` would import torch, but a run that ended on this machine shows its value."""
    for precision in ("bf16", "fp32") if config.precision == "auto" else (config.precision,):
        folder = folder_of(config, precision, fingerprint)
        recorded = read_json(folder / "environment.json")
        resolves_alike = (recorded.get("machine"), recorded.get("asked")) == (machine(), asked_for(config))
        if has_ended(folder) and (resolves_alike or config.precision != "auto"):
            return folder
    return None
