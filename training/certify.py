"""Measure the causality certificate of a run at its start, and at its end with trained weights, on text.

certificate.json has both, ``start`` and ``end``; ``end`` is null as long as the run trains.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from data import windows
from data.token_files import Prepared
from diagnostics import causality
from diagnostics.contract import buffers_kept
from model.seeds import seed_for
from rundir.folder import Run
from rundir.run_files import read_json
from system import signals
from system.terminal import announced
from training.batches import Batches
from training.cost import certificate_rounds
from training.loss import Loss
from training.parallel.ranks import Ranks
from training.parallel.strategies import Strategy


class Certifier:
    """Tests the model as the run uses it: its batch, precision and, in one process, compiled form.

    Args:
        loss: the loss of a training step, possibly compiled together with the net.

    Attributes:
        metrics: the leaks at the start.
    """

    def __init__(
        self, run: Run, tokens: Prepared, strategy: Strategy, batches: Batches, loss: Loss, ranks: Ranks
    ) -> None:
        self.run, self.tokens, self.strategy, self.loss = run, tokens, strategy, loss
        # several ranks: two rows at least, as a norm may mix the rows of ranks that have one each
        self.shape = max(batches.micro_rows // ranks.count, min(2, ranks.count)), batches.block_size
        self.rounds = certificate_rounds(run.config, ranks.count)
        self.compiled = loss.is_compiled and ranks.count == 1
        self.ranks = ranks

    def start(self, resumed: bool) -> dict[str, Any]:
        """Return the content of certificate.json before the end; that of a resumed run stays as it is."""
        earlier = self.ranks.broadcast(read_json(self.run.certificate) if resumed else {})
        self.at_start = earlier.get("start") or self.certificate_at("start")
        self.metrics = causality.leak_metrics(self.at_start)
        return {"start": self.at_start, "end": None}

    def end(self) -> None:
        """Test the trained model; write the certificate to certificate.json, and print it. In one process, a
        signal ends the test at once; the ranks of several wait for each other in it."""
        with signals.handled(signals.end) if self.ranks.count == 1 else nullcontext():
            certificate = self.certificate_at("end")
        self.run.write(self.run.certificate, {"start": self.at_start, "end": certificate})
        print(causality.describe(certificate, f"the trained {self.run.config.label()}"), flush=True)

    def certificate_at(self, when: str) -> dict[str, Any]:
        """Return the certificate at the run's ``start``, on random tokens, or at its ``end``, on text."""
        seed = seed_for(self.run.config.seed, "certificate", when)
        with announced("testing the model for causality"), self.strategy.full_model():
            return causality.certificate(
                self.strategy.model,
                self.tokens.tokenizer.vocab_size,
                self.text(seed) if when == "end" else self.random_tokens(seed),
                self.rounds,
                self.loss.compute.autocast,
                self.compiled_loss if self.compiled else None,
                seed,
                initial=when == "start",
            )

    def text(self, seed: int) -> tuple[Tensor, Tensor]:
        """Return two batches of the training split, each (B, T) int64."""
        B, T = self.shape
        x, _ = windows.training_batch(self.tokens.train, T, 2 * B, seed)
        idx, other = torch.from_numpy(x).split(B)
        return idx, other

    def random_tokens(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return causality.random_tokens(self.tokens.tokenizer.vocab_size, *self.shape, generator)

    def compiled_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a step, 0-d, and restore the buffers that its forward moves. As in a step, x and
        y are two contiguous tensors: for others the compiler would make other code, which no step runs."""
        x, y = (tokens.clone(memory_format=torch.contiguous_format) for tokens in (x, y))
        with buffers_kept(self.strategy.trained):
            return self.loss(self.strategy.net, x, y).detach()
