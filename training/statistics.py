"""Measure a training step: its activations and gradients, layer by layer, and its update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from cli.schema import StatsConfig
from model.seeds import seed_torch
from probe import metric_names
from probe.activations import Activations, without_effects
from probe.weights import Weights
from training.batches import MicroBatch
from training.ddp import Ranks
from training.log import Clock
from training.loss import Loss


class Statistics:
    """Measures the statistics that ``config`` selects. The seconds of measuring do not count as training."""

    def __init__(self, model: nn.Module, loss: Loss, ranks: Ranks, config: StatsConfig, clock: Clock) -> None:
        self.model, self.loss, self.ranks, self.clock = model, loss, ranks, clock
        self.wanted = metric_names.selection(config.metrics, config.sites)
        self.weights = Weights(model, self.wanted)

    def of_activations(self, batch: MicroBatch, histograms: bool) -> dict[str, Tensor]:
        """Run an extra forward and backward of ``batch`` through the eager model, without side effects, and
        return the statistics as tensors on the device: 0-d, histograms (67,)."""
        with self.clock.aside("statistics"), Activations(self.model, self.wanted, histograms) as values:
            seed_torch(batch.dropout_seed)
            loss = self.loss(without_effects(self.model), batch.x, batch.y)
            (loss / self.ranks.count).backward()  # as in a step, whose loss is the mean over the ranks
        return values

    @contextmanager
    def of_update(self, row: dict[str, Any], due: bool) -> Iterator[None]:
        """Context manager around clipping and the update. If ``due``, add to ``row`` the norms of gradients
        and weights before it, how far the update moved the weights, and ``stats/overhead``."""
        if not due:
            yield
            return
        with self.clock.aside("statistics"):
            row |= self.weights.before()
        yield
        with self.clock.aside("statistics"):
            row |= self.weights.after()
        row["stats/overhead"] = self.clock.spent["statistics"] / self.clock.training()
