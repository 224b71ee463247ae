"""The causality certificate of a run: shortly at its start, on random tokens, and thoroughly at its end, on
text.

certificate.json has both, ``start`` and ``end``; ``end`` is null as long as the run trains.
"""

from typing import Any

import torch
from torch import Tensor

from data import windows
from data.prepared import Prepared
from model import GPT
from model.seeds import seed_for
from probe import causality
from probe.hooks import buffers_kept
from training.batches import Batches
from training.ddp import Ranks
from training.loss import Loss
from training.run_folder import Run, read_json


class Certifier:
    """Tests the model as the run uses it: its batches of training and of evaluation, its precision and, in
    one process, its compiled form.

    Args:
        net: what a step calls.
        loss: the loss of a training step, possibly compiled together with the net.

    Attributes:
        metrics: the leaks at the start.
    """

    def __init__(
        self, run: Run, tokens: Prepared, model: GPT, net: Any, batches: Batches, loss: Loss, ranks: Ranks
    ) -> None:
        self.run, self.tokens, self.model, self.net, self.loss, self.ranks = (
            run,
            tokens,
            model,
            net,
            loss,
            ranks,
        )
        # several ranks: two rows at least, as a norm may mix the rows of ranks that have one each
        self.rows = max(batches.micro_rows // ranks.count, min(2, ranks.count))
        self.eval_rows = len(next(batches.fixed_windows())[0])
        self.compiled = loss.is_compiled and ranks.count == 1

    def start(self, resumed: bool) -> dict[str, Any]:
        """Return the content of certificate.json before the end; that of a resumed run stays as it is."""
        earlier = self.ranks.broadcast(read_json(self.run.certificate) if resumed else {})
        self.at_start = earlier.get("start") or self.certificate_at("start")
        self.metrics = causality.leak_metrics(self.at_start)
        return {"start": self.at_start, "end": None}

    def end(self) -> None:
        """Test the trained model; write the certificate to certificate.json, and print it."""
        certificate = self.certificate_at("end")
        self.run.write(self.run.certificate, {"start": self.at_start, "end": certificate})
        print(causality.describe(certificate, f"the trained {self.run.config.label()}"), flush=True)

    def certificate_at(self, when: str) -> dict[str, Any]:
        seed = seed_for(self.run.config.seed, "certificate", when)
        tokens_of = self.text if when == "end" else self.random_tokens
        return causality.certificate(
            self.model,
            self.tokens.tokenizer.vocab_size,
            tokens_of(self.rows, seed),
            eval_tokens=tokens_of(self.eval_rows, seed),
            thorough=when == "end",
            autocast=self.loss.compute.autocast,
            compiled_loss=self.compiled_loss if self.compiled and when == "end" else None,
            seed=seed,
            initial=when == "start",
        )

    def text(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return two batches of the training split, each (rows, T) int64."""
        x, _ = windows.training_batch(self.tokens.train, self.model.block_size, 2 * rows, seed)
        idx, other = torch.from_numpy(x).split(rows)
        return idx, other

    def random_tokens(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return causality.random_tokens(
            self.tokens.tokenizer.vocab_size, rows, self.model.block_size, generator
        )

    def compiled_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a step, 0-d, and restore the buffers that its forward moves. As in a step, x and
        y are two contiguous tensors: for others the compiler would make other code, which no step runs."""
        x, y = (tokens.clone(memory_format=torch.contiguous_format) for tokens in (x, y))
        with buffers_kept(self.model):
            return self.loss(self.net, x, y).detach()
