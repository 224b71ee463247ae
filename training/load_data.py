"""Load a run's tokens: its text, tokenized by data.tokenizer, which must fit any weights of init_from."""

from cli.schema import RunConfig
from data.token_cache import prepare
from data.token_files import Prepared
from interop.pretrained import pretrained
from system.errors import ConfigError
from training.parallel.ranks import Ranks


def load_tokens(config: RunConfig, ranks: Ranks) -> Prepared:
    """Return the tokens of a run, prepared now if the cache lacks them: once on each machine.

    Raises:
        UserError: as ``tokens_of`` does; or a split is too short for the model's context.
    """
    with ranks.local_first():
        tokens = tokens_of(config)
    tokens.check_length(config.model.block_size)
    return tokens


def tokens_of(config: RunConfig) -> Prepared:
    """Return the tokens of a run, prepared now if the cache lacks them.

    Raises:
        ConfigError: the weights of ``init_from`` were trained with another tokenizer, or have none.
        DataError: as data.token_cache.prepare does.
    """
    weights = pretrained(config.init_from) if config.init_from else None
    spec = None
    if config.data.tokenizer == "init_from":
        if weights is None:
            raise ConfigError(
                "data.tokenizer: init_from is the tokenizer of pretrained weights; also give init_from=…"
            )
        spec = weights.tokenizer
        if spec is None:
            raise ConfigError(f"data.tokenizer: {weights.name} lacks a tokenizer.json or meta.json; add one")
    data = prepare(**config.data.model_dump(), spec=spec)
    if weights:
        weights.check_vocabulary(data.tokenizer.vocab_size)
        if weights.tokenizer not in (None, data.tokenizer.spec):
            raise ConfigError(
                f"data.tokenizer: {weights.name} was trained with another tokenizer than this text's; "
                "give data.tokenizer=init_from"
            )
    return data
