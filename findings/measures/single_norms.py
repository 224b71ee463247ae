"""Measure norms: what the output depends on, how precise it is, how much batch statistics fluctuate."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from findings.measures.at_init import log_slope
from findings.models import UNSEEN, Case, Cases, Measured
from probe import norm_maps
from training.batches import windows

BATCHES = 24  # number of batches over which a fluctuation is measured


@torch.no_grad()
def largest_change(logits: Tensor, reference: Tensor) -> float:
    """Return max |logits − reference| / std(reference)."""
    return float((logits - reference).abs().max() / reference.std())


@torch.no_grad()
def test_time_identity(cases: Cases) -> Measured:
    """The largest change of a row's logits, in standard deviations of the logits, if the model is in
    evaluation mode; and, in training mode, if the row is alone in the batch, and if the rows are cut to half
    their length."""
    changes = cases.by_arm(logit_changes)
    values = {f"{arm}: {kind}": value for arm in changes for kind, value in changes[arm].items()}
    points = {arm: {kind: max(value, 1e-8) for kind, value in changes[arm].items()} for arm in changes}
    return Measured(values, points)


def logit_changes(case: Case) -> dict[str, float]:
    model, (idx, _) = case.model(), case.batch()
    T = idx.shape[1] // 2
    evaluated = model.eval()(idx)  # before a forward in training mode changes running estimates
    in_training = model.train()(idx)
    alone, short = model(idx[:1]), model(idx[:, :T])
    return {
        "evaluation": largest_change(evaluated, in_training),
        "alone in the batch": largest_change(alone, in_training[:1]),
        "half of the length": largest_change(short, in_training[:, :T]),
    }


EPS = 1e-5  # the eps of layernorm and torch_layernorm


def one_pass(x: Tensor) -> Tensor:
    """Return x normalized by E[x²] − E[x]²: the variance from a sum and a sum of squares."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + EPS).sqrt()


def exact(x: Tensor) -> Tensor:
    """Return x normalized in fp64, centred first."""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


@torch.no_grad()
def cancellation(cases: Cases, offsets: list[float]) -> Measured:
    """The largest error of normalized rows in fp32, compared with fp64, for rows whose mean is ``offsets``
    standard deviations from 0.

    The difference E[x²] − E[x]² loses two digits for each digit of the offset. Once no digit is left, the
    difference can be negative, and its root NaN.
    """
    width = cases[cases.arms[0]].config.model.n_embd
    noise = torch.randn(256, width, generator=torch.Generator().manual_seed(cases.seed))
    normalizers = {arm: cases[arm].model().final for arm in cases.arms} | {"one pass": one_pass}
    errors: dict[str, dict[float, float]] = {name: {} for name in normalizers}
    nan_share = {}
    for offset in offsets:
        x = noise + offset
        for name, normalize in normalizers.items():
            y = normalize(x)
            finite = y.isfinite().all(-1)
            errors[name][offset] = float((y[finite].double() - exact(x)[finite]).abs().max())
        nan_share[offset] = float((~finite).float().mean())  # of "one pass", the last normalizer
    growing = {offset: error for offset, error in errors["one pass"].items() if 10 <= offset <= 300}
    farthest = max(offsets)
    values = {
        "one pass: slope of its error": log_slope(growing),
        "one pass: largest share of rows that are NaN": max(nan_share.values()),
        "layernorm: largest error": max(errors["layernorm"].values()),
        "log10 of torch_layernorm's error / layernorm's, farthest out": math.log10(
            errors["torch_layernorm"][farthest] / errors["layernorm"][farthest]
        ),
    }
    return Measured(values, errors)


@torch.no_grad()
def fluctuations(case: Case, batches: Iterable[Tensor]) -> dict[str, float]:
    """Return, by site, how much the batch means of a norm's inputs fluctuate over batches of tokens (B, T),
    in training mode: std(a channel's batch mean) / std(the channel), as root mean square over channels. For n
    independent values per batch the fluctuation is 1/√n."""
    model = case.model()
    moments: dict[str, list[Tensor]] = {site: [] for site in norm_maps.norms(model)}  # (2, C) of each batch

    def record(site: str, norm: Any, args: tuple[Tensor], output: Tensor) -> None:
        x = args[0].flatten(0, -2)  # (B·T, C)
        moments[site].append(torch.stack([x.mean(0), x.square().mean(0)]))

    for site, norm in norm_maps.norms(model).items():
        norm.register_forward_hook(partial(record, site))
    for idx in batches:
        model(idx)
    result = {}
    for site, batch_moments in moments.items():
        means, squares = torch.stack(batch_moments, dim=1)  # both (batches, C)
        variances = squares.mean(0) - means.mean(0).square()
        result[site] = float((means.var(0) / variances).mean().sqrt())
    return result


def batch_spread(cases: Cases, block: int, rows: list[int], lengths: list[int]) -> Measured:
    """The fluctuation of BatchNorm's batch means before a block's attention, by the number of rows and by the
    number of time steps of a batch."""
    case = cases["batchnorm"]
    site = f"{block % case.config.model.n_layer:02d}.attn.pre"

    def fluctuation(B: int, T: int) -> float:  # noqa: N803
        return fluctuations(case, (case.batch(step, B)[0][:, :T] for step in range(BATCHES)))[site]

    by_rows = {B: fluctuation(B, lengths[-1]) for B in rows}
    by_length = {T: fluctuation(rows[-1], T) for T in lengths}
    points = {f"rows, of {lengths[-1]} time steps": by_rows, f"time steps, of {rows[-1]} rows": by_length}
    slopes = {"slope against rows": log_slope(by_rows), "slope against time steps": log_slope(by_length)}
    return Measured(slopes, points)


def text_batches(case: Case, way: str) -> Iterator[Tensor]:
    """Yield tokens (B, T) of the training split, drawn in one ``way``: "anywhere" (random windows, as in
    training), "one by one" (random tokens), or "in a row" (adjoining windows from a random start)."""
    B, T = case.config.train.batch_size, case.config.model.block_size
    random = torch.Generator().manual_seed(case.config.seed)
    for step in range(BATCHES):
        idx, _ = case.batch(UNSEEN + step)
        if way == "one by one":
            positions = torch.randint(len(case.data.train), (B * T, 1), generator=random)
            idx = torch.from_numpy(windows(case.data.train, positions[:, 0].numpy(), 1)[0]).view(B, T)
        if way == "in a row":
            start = int(torch.randint(len(case.data.train) - B * T, (), generator=random))
            idx = torch.from_numpy(windows(case.data.train, start + np.arange(B) * T, T)[0])
        yield idx


def batch_fluctuation(cases: Cases, way: str) -> Measured:
    """The fluctuation of BatchNorm's batch means / the fluctuation of as many independent values, averaged
    over the norms of the blocks: for batches drawn in a ``way`` of text_batches, and for windows in a row."""
    case = cases["batchnorm"]
    independent = (case.config.train.batch_size * case.config.model.block_size) ** -0.5
    values, points = {}, {}
    for name, kind in (("fluctuation", way), ("fluctuation of windows in a row", "in a row")):
        fluctuation = fluctuations(case, text_batches(case, kind))
        points[kind] = relative = {site: y / independent for site, y in fluctuation.items()}
        mean = float(np.mean([relative[site] for site in relative if site != "final"]))
        values[f"{name} / that of independent values"] = mean
    return Measured(values, points)
