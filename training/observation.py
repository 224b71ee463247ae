"""Look at a run's model without changing its training: statistics of a step, and the test of causality."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cli.schema import StatsConfig
from model import GPT
from model.seeds import seed_for, seed_torch
from probe import causality, metric_names
from probe.activations import Activations, without_effects
from probe.statistics import Weights
from training.batches import Batches, MicroBatch, training_batch
from training.ddp import Ranks
from training.log import RunLog
from training.loss import Loss
from training.run_folder import Run, read_json


class Statistics:
    """Measures the statistics that ``config`` selects. The seconds of measuring do not count as training."""

    def __init__(self, model: nn.Module, loss: Loss, ranks: Ranks, config: StatsConfig, log: RunLog) -> None:
        self.model, self.loss, self.ranks, self.log = model, loss, ranks, log
        self.wanted = metric_names.selection(config.metrics, config.sites)
        self.weights = Weights(model, self.wanted)

    def of_activations(self, batch: MicroBatch, histograms: bool) -> dict[str, Tensor]:
        """Run an extra forward and backward of ``batch`` through the eager model, without side effects, and
        return the statistics as tensors on the device: numbers are 0-d, histograms (67,)."""
        with self.log.clock.aside("statistics"), Activations(self.model, self.wanted, histograms) as values:
            seed_torch(batch.dropout_seed)
            loss = self.loss(without_effects(self.model), batch.x, batch.y)
            (loss / self.ranks.count).backward()  # as in a step, whose loss is the mean over the ranks
        return values

    @contextmanager
    def of_update(self, row: dict[str, Any], due: bool) -> Iterator[None]:
        """Context manager around clipping and the update. If ``due``, add to ``row`` the norms of gradients
        and weights before clipping, how far the update moved the weights, and ``stats/overhead``."""
        if not due:
            yield
            return
        clock = self.log.clock
        with clock.aside("statistics"):
            row |= self.weights.before()
        yield
        with clock.aside("statistics"):
            row |= self.weights.after()
        row["stats/overhead"] = clock.spent["statistics"] / clock.training()


class Certifier:
    """Tests in training and in evaluation whether the model is causal, in the run's batch sizes and
    precision.

    Attributes:
        metrics: the leaks at the start.
    """

    def __init__(self, run: Run, model: GPT, batches: Batches) -> None:
        self.run, self.model, self.tokens = run, model, batches.tokens
        self.compute, self.ranks = batches.compute, batches.ranks
        # with several ranks at least two rows, as a norm may mix rows across ranks
        self.rows = max(batches.micro_rows // self.ranks.count, min(2, self.ranks.count))
        self.eval_rows = len(next(batches.fixed_windows())[0])

    def start(self, resumed: bool) -> dict[str, Any]:
        """Test the model, unless a resumed run has been tested before. Return the content that
        certificate.json has until the run ends."""
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
            autocast=self.compute.autocast,
            seed=seed,
            initial=when == "start",
        )

    def text(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return two batches of the training split, each (rows, T) int64."""
        x, _ = training_batch(self.tokens.train, self.model.block_size, 2 * rows, seed)
        idx, other = torch.from_numpy(x).split(rows)
        return idx, other

    def random_tokens(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return causality.random_tokens(
            self.tokens.tokenizer.vocab_size, rows, self.model.block_size, generator
        )
