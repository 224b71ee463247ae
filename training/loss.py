"""The loss of a batch or of validation text: the mean cross-entropy of the next tokens, in nats per token.
Evaluator computes val/loss and the other validation losses.

Several ranks share the batches of an evaluation: in every round, each rank takes one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.seeds import seed_for, seed_torch
from probe.hooks import buffers_kept
from training.batches import Batches, Windows
from training.ddp import Ranks, broadcast_buffers
from training.device import Compute
from training.log import RunLog
from training.signals import Stop

Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
Objective = Callable[[Net, Tensor, Tensor], Tensor]  # a net, tokens, targets (B, T) -> mean loss, 0-d
LossOf = Callable[[Net, Windows], Tensor]  # mean loss per target token, 0-d
Losses = list[tuple[float, int]]  # of each batch: its mean loss per target token, its number of target tokens
AT_ONCE = 2**26  # logits: 256 MB in fp32
CPU_PART = 2**23  # 32 MB: malloc maps larger buffers anew each time, which took half of a step's time


def cross_entropy(net: Net, idx: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``targets``, the tokens after ``idx``, in nats per token.

    More than AT_ONCE logits are converted to fp32 part by part, and each part again in the backward, because
    the fp32 copies need more memory than all the rest. In bf16, with 12 · 1,024 tokens and GPT-2's 50,257
    logits for each, this takes 3.1 GB instead of 7.3 GB.
    """
    logits, targets = net(idx).flatten(0, 1), targets.flatten()  # (N, V), (N,)
    if logits.numel() <= AT_ONCE or torch.compiler.is_compiling():  # compiled code copies nothing
        return F.cross_entropy(logits.float(), targets)
    at_once = min(AT_ONCE, CPU_PART) if logits.device.type == "cpu" else AT_ONCE
    rows = max(1, at_once // logits.shape[1])
    parts = zip(logits.split(rows), targets.split(rows), strict=True)
    sums = [checkpoint(summed, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(sums).sum() / (targets >= 0).sum()  # a negative target is ignored


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="sum")


@dataclass(frozen=True)
class Loss:
    """``loss(net, x, y)`` is the mean loss of a net on tokens (B, T) and targets (B, T), 0-d, computed in the
    precision of the run.

    Attributes:
        objective: ``cross_entropy``, possibly compiled together with the net.
    """

    compute: Compute
    objective: Objective = cross_entropy

    def __call__(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        with self.compute.autocast():
            return self.objective(net, x, y)

    def of_batch(self, net: Net, batch: Windows) -> Tensor:
        """Return the loss on a batch that is not on the device yet."""
        return self(net, *map(self.compute.tensor, batch))


# ---------------------------------------------------------------------------------------------------
# Evaluation


@dataclass(frozen=True)
class Evaluator:
    """``evaluate(step)``: the validation losses that are due at a step, by metric."""

    model: nn.Module
    batches: Batches
    loss: Loss
    ranks: Ranks
    running_norms: Sequence[nn.Module]  # normalize by running estimates in evaluation only
    stop: Stop  # if a signal came, ends the evaluation between two batches
    log: RunLog  # at step ``log.last_step`` the whole validation split is evaluated, too

    def __call__(self, step: int) -> dict[str, Any]:
        broadcast_buffers(self.ranks, self.model)
        with self.log.clock.aside("evaluation"):
            row: dict[str, Any] = {"val/loss": mean(self.losses(self.batches.fixed_windows()))}
            if self.running_norms:
                on_batch, on_estimates = self.on_batch_statistics(), row["val/loss"]
                if self.batches.n_fixed % self.batches.micro_rows:  # on_batch lacks the last windows
                    on_estimates = mean(self.losses(self.batches.micro_windows()))
                row |= {"val/batch_stats_loss": on_batch, "val/batch_stats_gap": on_batch - on_estimates}
            if step == self.log.last_step:
                row |= self.on_the_whole_split(step)
        return row

    def losses(self, windows: Iterable[Windows]) -> Losses:
        rounds = self.stop.watching(self.ranks.rounds(windows))
        return evaluate(self.model, self.loss.of_batch, rounds, self.ranks)

    def on_batch_statistics(self) -> float:
        """Return the mean loss if the modules in ``running_norms`` use batch statistics. Each rank
        evaluates its share of every micro-batch, and the ranks' mean losses are averaged. As in training, the
        norm decides whether it uses the statistics of the share or of the whole micro-batch."""
        share = self.ranks.share(self.batches.micro_rows)
        shares = ([(x[share], y[share])] for x, y in self.stop.watching(self.batches.micro_windows()))
        local_loss = mean(evaluate(self.model, self.loss.of_batch, shares, Ranks(), self.running_norms))
        return float(self.ranks.mean(torch.tensor(local_loss, dtype=torch.float64)))

    def on_the_whole_split(self, step: int) -> dict[str, float]:
        """Return the loss on the whole split, in nats per token and in bits per byte. If the split has at
        least two windows, also return the losses on its halves: val/select_loss is for choosing settings,
        val/report_loss for comparing those chosen."""
        targets = self.batches.val_targets
        losses = self.losses(self.log.progress.through(step, self.batches.whole_split(), targets))
        loss = mean(losses)
        bpb = bits_per_byte(loss, targets, self.batches.tokens.val_bytes())
        before, across = self.batches.middle()
        first, second = losses[:before], losses[before:]
        if across:  # evaluate this batch again in two parts: above, it has one loss for both
            parts = self.losses(across)
            first, second = first + parts[:1], parts[1:] + second[1:]
        halves = {"val/select_loss": mean(first), "val/report_loss": mean(second)} if first else {}
        return {"val/full_loss": loss, "val/bpb": bpb} | halves


def evaluate(
    model: nn.Module,
    loss_of: LossOf,
    rounds: Iterable[list[Windows]],
    ranks: Ranks,
    running_norms: Sequence[nn.Module] = (),
) -> Losses:
    """Return the losses of all batches in evaluation mode; in every round, each rank evaluates one batch. A
    norm that draws random numbers draws the same ones in each evaluation. Buffers are restored after each
    batch. The modules ``running_norms`` normalize by the statistics of their batch, as in training."""
    sizes: list[int] = []  # target tokens of each batch
    local_losses = []
    model.eval()
    for module in running_norms:
        module.train()
    try:
        with torch.inference_mode():
            for batches in rounds:
                sizes += [y.size for _, y in batches]
                if ranks.rank < len(batches):
                    seed_torch(seed_for(0, "evaluation", len(sizes) - len(batches) + ranks.rank))
                    with buffers_kept(model):
                        local_losses.append(loss_of(model, batches[ranks.rank]))
            losses = torch.zeros(len(sizes))
            if local_losses:
                losses[ranks.rank :: ranks.count] = torch.stack(local_losses).cpu()  # one copy to the host
            values = ranks.sum(losses).tolist()
    finally:
        model.train()
    return list(zip(values, sizes, strict=True))


def mean(losses: Losses) -> float:
    """Return the mean loss per target token."""
    return math.fsum(loss * targets for loss, targets in losses) / sum(targets for _, targets in losses)


def bits_per_byte(loss: float, targets: int, n_bytes: int) -> float:
    """Convert the mean loss of ``targets`` tokens, in nats, into bits per byte of their text. These can be
    compared between tokenizers."""
    return loss * targets / (n_bytes * math.log(2))


def modules_with_running_estimates(model: nn.Module, loss_of: Callable[[Net], Tensor]) -> list[nn.Module]:
    """Return the modules, such as BatchNorm, whose buffers a forward in training mode changes. Return [] if
    they normalize by these buffers in training, too. The buffers are left as they were."""
    if not [*model.buffers()]:
        return []
    with torch.no_grad():
        with buffers_kept(model):
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            loss_of(model)
            moved = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])]
        owners = {name.rpartition(".")[0] for name in moved}
        modules = [module for name, module in model.named_modules() if name in owners]
        losses = []
        model.eval()
        for in_training in ([], modules):
            for module in in_training:
                module.train()
            with buffers_kept(model):
                losses.append(loss_of(model))
        model.train()
    return [] if torch.equal(*losses) else modules
