"""The tokens and the folder of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from cli.schema import RunConfig
from data.errors import ConfigError
from data.prepared import Prepared, prepare
from training.ddp import Ranks
from training.identity import folder_of
from training.run_folder import Run, has_ended


def load_tokens(config: RunConfig, ranks: Ranks) -> Prepared:
    """Return the tokens of a run. If the cache lacks them, rank 0 prepares them, while the others wait.

    Raises:
        UserError: as ``tokens_of`` does; or a split is too short for the model's context.
    """
    if not ranks.first:
        ranks.broadcast()
    tokens = tokens_of(config)
    if ranks.first:
        ranks.broadcast()
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
                "data.tokenizer: init_from means the tokenizer of pretrained weights; also give init_from=…"
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
    """Context manager: yield the run, and whether it had ended. The name of its folder identifies its result.
    An existing folder is locked, unless its run has ended.

    Raises:
        ConfigError: another process trains this run, or the device is not available.
    """
    from training import device  # imports torch, so only now: typos are reported before

    compute = device.choose(config.device, config.precision)
    folder = folder_of(config, compute.precision, tokens.fingerprint)
    if ranks.broadcast(has_ended(folder) and not config.fresh):
        yield Run(folder, config, writes=False), True
        return
    counts = f"{len(tokens.train):,} training tokens, vocabulary of {tokens.tokenizer.vocab_size}"
    print(f"{config.label()} seed={config.seed}: {counts}", flush=True)
    with Run(folder, config, writes=ranks.first) as run:
        yield run, False
    ranks.broadcast()  # waits until rank 0 has written how the run ended
