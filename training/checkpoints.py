"""Write a run's checkpoints, and resume a run from the newest one.

At a signal, a run saves and ends (``ending_on_signal``). After kill -9, status.json still says running, and
the steps since the last checkpoint are lost. Either way the same command resumes the run: ``resume`` takes
the newest valid checkpoint, rundir/metrics.py drops the rows after that checkpoint, and the result has the
bits of an uninterrupted run. Without a checkpoint, or with fresh=true, the run starts over.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from data.token_files import Prepared
from rundir import checkpoint_file
from rundir.folder import Run
from system.errors import CheckpointError
from system.signals import Interrupted, Pending
from training import state
from training.log import RunLog
from training.optimizer import Optimizer
from training.parallel.ranks import Ranks
from training.parallel.strategies import Strategy


def resume(run: Run, strategy: Strategy, optimizer: Optimizer, ranks: Ranks) -> int:
    """Restore model and optimizer from the newest usable checkpoint, which rank 0 finds. Call this inside
    ``strategy.full_model``. Returns the checkpoint's step, or 0 if none is later than step 0.

    Raises:
        CheckpointError: there are checkpoints, but none is usable.
    """
    checkpoint = checkpoint_file.newest(run.checkpoints, run.folder.name) if ranks.first else None
    step = ranks.broadcast(checkpoint.meta.step if checkpoint else None)
    if not step:  # none, or the initial weights, which the model has
        return 0
    try:
        checkpoint = checkpoint or checkpoint_file.load(checkpoint_file.path_of(run.checkpoints, step))
        if not checkpoint.meta.optimizer:
            raise CheckpointError(
                f"{checkpoint.path}: has no optimizer state, so a run cannot resume from it"
            )
        state.restore_model(strategy.model, checkpoint)
        strategy.load_full_model()
        state.restore_optimizers(strategy.trained, optimizer.optimizers, checkpoint, strategy.shard)
    except CheckpointError as error:  # for example, the model's code has changed
        raise CheckpointError(f"{error}; fresh=true starts the run over") from None
    return checkpoint.meta.step


@dataclass(frozen=True)
class Checkpoints:
    """Writes the checkpoints of a run."""

    run: Run
    strategy: Strategy
    optimizer: Optimizer
    tokens: Prepared
    ranks: Ranks
    log: RunLog
    stop: Pending  # a signal, if one came; ``ending_on_signal`` saves and ends the run

    def save(self, step: int) -> None:
        """Save this step, unless it is saved already, or an update was skipped as non-finite: then the run is
        about to end as diverged. If a tensor is not finite, warn: such a checkpoint could not be used."""
        if step == self.run.status["saved"] or self.optimizer.skipped:
            return
        with self.log.clock.aside("checkpoints"), self.log.progress.announced("saving the checkpoint"):
            trained = self.strategy.trained
            moments, structure = state.optimizer_state(trained, self.optimizer.optimizers)
            tensors = self.strategy.gather(state.model_tensors(trained) | moments)
            if name := self.ranks.broadcast(state.first_not_finite(tensors)):
                if self.ranks.first:
                    print(f"warning: no checkpoint of step {step}: {name} is not finite", file=sys.stderr)
                return
            meta = checkpoint_file.Meta(
                step=step,
                config=self.run.config,
                tokenizer=self.tokens.tokenizer.spec,
                fingerprint=self.tokens.fingerprint,
                run=self.run.folder.name,
                optimizer=structure,
            )
            if self.ranks.first:
                self.run.keep_lock()
                self.log.metrics.sync()
                best = self.log.best["step"] if self.log.best else None
                checkpoint_file.save(self.run.checkpoints, meta, tensors, best)
            self.run.write_status(step=step, saved=step)

    @contextmanager
    def ending_on_signal(self, step: int) -> Iterator[None]:
        """Context manager: at a signal, save the step, as weights and step agree here; raise Interrupted."""
        try:
            self.stop.check()
            yield
        except Interrupted:
            if self.stop.forced:
                raise
            self.save(step)
            self.ranks.broadcast()  # no rank ends before the checkpoint is written
            raise
