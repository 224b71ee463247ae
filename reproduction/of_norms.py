"""Measured of norms in models as they begin: what they depend on, and how exactly they compute."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagnostics import maps
from reproduction.at_init import log_slope
from reproduction.cases import Case, Cases, Found

BATCHES = 32  # that a spread is taken over


@torch.no_grad()
def change(found: Tensor, reference: Tensor) -> float:
    """The largest difference, in standard deviations of the reference."""
    return float((found - reference).abs().max() / reference.std())


@torch.no_grad()
def test_time_identity(cases: Cases) -> Found:
    """By how much the logits of a row change, at most, in standard deviations of the logits: from training
    mode to evaluation mode; alone in the batch instead of among others, in training mode; and cut to half of
    its length."""
    values: dict[str, float] = {}
    rows: list[tuple[str, Any, float]] = []
    for arm in cases.arms:
        model, (idx, _) = cases[arm].model(), cases[arm].batch()
        T = idx.shape[1] // 2
        whole = model.train()(idx)
        alone, short = model(idx[:1]), model(idx[:, :T])
        evaluated = model.eval()(idx)
        found = {
            "evaluation": change(evaluated, whole),
            "alone in the batch": change(alone, whole[:1]),
            "half of the length": change(short, whole[:, :T]),
        }
        values |= {f"{arm}: {what}": value for what, value in found.items()}
        rows += [(arm, what, max(value, 1e-8)) for what, value in found.items()]
    return Found(values, rows)


def one_pass(x: Tensor) -> Tensor:
    """x normalized by E[x²] − E[x]²: the variance as a sum and a sum of squares give it."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square()).sqrt()


@torch.no_grad()
def cancellation(cases: Cases, offsets: list[float]) -> Found:
    """The largest error of a normalized row in fp32, its mean so many standard deviations from 0, against
    fp64.

    What E[x²] − E[x]² is divided by loses two digits for each of the offset, and is negative, so that the
    root is NaN, once these are used up.
    """
    width = cases[cases.arms[0]].config.model.n_embd
    noise = torch.randn(256, width, generator=torch.Generator().manual_seed(cases.seed))
    ways = {arm: cases[arm].model().final for arm in cases.arms} | {"one pass": one_pass}
    errors: dict[str, dict[float, float]] = {way: {} for way in ways}
    not_finite = 0.0
    for offset in offsets:
        x = noise + offset
        exact = x.double() - x.double().mean(-1, keepdim=True)
        exact = exact / exact.square().mean(-1, keepdim=True).sqrt()
        for way, normalize in ways.items():
            y = normalize(x)
            finite = y.isfinite().all(-1)
            not_finite += float((~finite).float().mean()) if way == "one pass" else 0.0
            errors[way][offset] = float((y[finite].double() - exact[finite]).abs().max())
    grows = {offset: error for offset, error in errors["one pass"].items() if 10 <= offset <= 300}
    ours, torchs = (errors[arm] for arm in ("layernorm", "torch_layernorm"))
    return Found(
        {
            "one pass: slope of its error": log_slope(grows),
            "one pass: rows that are NaN or infinite, over all offsets": not_finite,
            "layernorm: largest error": max(ours.values()),
            "log10(torch_layernorm's / layernorm's error) at the largest offset": math.log10(
                torchs[offsets[-1]] / ours[offsets[-1]]
            ),
        },
        [(way, offset, error) for way, found in errors.items() for offset, error in found.items()],
    )


@torch.no_grad()
def inputs(case: Case, site: str, rows: int, length: int) -> list[Tensor]:
    """What goes into the norm at ``site``, (rows, T, C), in training mode, of several batches of so many rows
    and time steps. The model's buffers move, and are looked at by nothing."""
    model = case.model()
    found: list[Tensor] = []
    hook = maps.norms(model)[site].register_forward_hook(lambda _, args, y: found.append(args[0]))
    for step in range(BATCHES):
        model(case.batch(step, rows)[0][:, :length])
    hook.remove()
    return found


def fluctuation(batches: list[Tensor]) -> float:
    """Standard deviation of a channel's batch mean over batches, in standard deviations of the channel; the
    root mean square over channels. Of n independent values a batch it is 1/√n."""
    means = torch.stack([x.mean((0, 1)) for x in batches])  # (batches, C)
    variances = torch.cat([x.flatten(0, 1) for x in batches]).var(0)
    return float((means.var(0) / variances).mean().sqrt())


def batch_spread(cases: Cases, site: str, rows: list[int], lengths: list[int]) -> Found:
    """How BatchNorm's batch means fluctuate, against the rows and against the time steps of a batch."""
    case = cases["batchnorm"]
    by_rows = {B: fluctuation(inputs(case, site, B, lengths[-1])) for B in rows}
    by_length = {T: fluctuation(inputs(case, site, rows[-1], T)) for T in lengths}
    points = [(f"rows, of {lengths[-1]} time steps", B, y) for B, y in by_rows.items()]
    points += [(f"time steps, of {rows[-1]} rows", T, y) for T, y in by_length.items()]
    return Found(
        {"slope against rows": log_slope(by_rows), "slope against time steps": log_slope(by_length)}, points
    )


@torch.no_grad()
def batch_fluctuation(cases: Cases, shuffled: bool = False) -> Found:
    """The fluctuation of BatchNorm's batch means at each norm of a model, over that of as many independent
    values.

    Args:
        shuffled: the tokens of a batch are exchanged at random, over rows and time steps: then those that a
            norm sees before any attention are independent.
    """
    case = cases["batchnorm"]
    model = case.model()
    sites = maps.norms(model)
    found: dict[str, list[Tensor]] = {site: [] for site in sites}
    hooks = [
        norm.register_forward_hook(lambda _, args, y, site=site: found[site].append(args[0]))
        for site, norm in sites.items()
    ]
    generator = torch.Generator().manual_seed(cases.seed)
    for step in range(BATCHES):
        idx, _ = case.batch(1_000_000 + step)  # it was not trained on
        if shuffled:
            idx = idx.flatten()[torch.randperm(idx.numel(), generator=generator)].view_as(idx)
        model(idx)
    for hook in hooks:
        hook.remove()
    values = {site: fluctuation(inputs) * math.sqrt(idx.numel()) for site, inputs in found.items()}
    own = [value for site, value in values.items() if site != "final"]
    return Found(
        {
            "fluctuation / that of independent values": float(np.mean(own)),
            "the same, at its largest": max(own),
        },
        [("shuffled" if shuffled else "text", site, value) for site, value in values.items()],
    )
