"""Open the folder of a run. Torch is imported only if the run has to be trained."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.schema import RunConfig
from data.token_files import Prepared
from rundir.find_run import ended_folder
from rundir.folder import AlreadyEndedError, Run, has_ended, read_status
from rundir.identity import run_folder
from system.terminal import announced
from training.parallel.ranks import Ranks


@contextmanager
def open_run(config: RunConfig, tokens: Prepared, ranks: Ranks) -> Iterator[Run]:
    """Open the folder of a run, whose name identifies the result; lock the folder if it exists.

    The folder of a run that has already ended is opened without a lock, and ``had_ended`` is true.

    Raises:
        ConfigError: another process trains this run, or the device is not available.
    """
    ended = None if config.fresh else ended_folder(config, tokens.fingerprint)
    if path := ranks.broadcast(str(ended) if ended else None):
        yield Run(Path(path), config, had_ended=True)
        return
    counts = f"{len(tokens.train):,} training tokens, vocabulary of {tokens.tokenizer.vocab_size}"
    print(f"{config.label()} seed={config.seed}: {counts}", flush=True)
    with announced("importing torch"):
        import training.setup  # noqa: F401 here, where it is announced; train.py's import then takes no time
        from training import device

    compute = device.choose(config.device, config.precision)
    folder = run_folder(config, compute.precision, tokens.fingerprint)
    if not config.fresh and ranks.broadcast(has_ended(folder)):
        yield Run(folder, config, had_ended=True)
        return
    prefix = "" if read_status(folder) or any(folder.glob("checkpoints/*")) else "a new run, "
    print(f"{folder}: {prefix}on {compute}", flush=True)
    try:
        with suppress(AlreadyEndedError), Run(folder, config, writes=ranks.first) as run:
            ranks.broadcast()  # waits until rank 0 has locked the folder
            yield run
    finally:
        compute.release()
    ranks.broadcast()  # waits until rank 0 has written how the run ended
