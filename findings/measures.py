"""The functions that measure findings; conf/finding/*.yaml names them.

Each function gets the models of one seed by arm. It returns quantities by name, and the points of the picture
by arm. A quantity that cannot be judged is NaN, which makes the finding INCONCLUSIVE. An example is a
comparison of losses if a better learning rate may lie beyond those that were tried.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from findings.models import Model
from probe import block_effects, norm_maps
from study.statistics import steps_to

Arms = dict[str, Model]
Grid = dict[str, dict[float, Model]]  # arm -> value of the varied key -> model
Values = dict[str, float]
Points = dict[str, Any]  # arm -> y by x, or pairs (x, y)
Measured = tuple[Values, Points]
BATCHES = 24  # over which a fluctuation is measured
UNSEEN = 1_000_000  # no run reaches this step, so the batches from here on are new to every model
LEARNED = 2.8  # nats; a character model with a higher loss has not learned


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line."""
    return float(np.polyfit(x, y, 1)[0])


def log_slope(points: Mapping[Any, float]) -> float:
    """Return the slope of log y against log x."""
    return slope([*map(math.log, points)], [*map(math.log, points.values())])


def numbered(values: Iterable[float], start: int = 1) -> dict[int, float]:
    return dict(enumerate(values, start))


# ---------------------------------------------------------------------------------------------------
# Models as initialised


def last_gradient(model: Model) -> float:
    """Return ‖∂loss/∂W₂‖ of the last block's MLP, on the first training batch."""
    net: Any = model.load()
    idx, targets = model.batch()
    F.cross_entropy(net(idx).flatten(0, 1), targets.flatten()).backward()
    return float(net.blocks[-1].mlp.branch.proj.weight.grad.norm())


def gradient_order(models: Grid) -> Measured:
    """ln(post / pre) of the last block's gradient, in post-norm and in pre-norm, averaged over depths, for
    each initialization."""
    gradients = {arm: {L: last_gradient(m) for L, m in depths.items()} for arm, depths in models.items()}
    values = {}
    for init in ("xavier", "gpt2"):
        post, pre = ([*gradients[f"{placement}, {init}"].values()] for placement in ("post", "pre"))
        values[f"ln(post / pre), {init}"] = float(np.log(np.divide(post, pre)).mean())
    return values, gradients


def variance_at_init(models: Arms) -> Measured:
    """Growth of the residual stream's variance: what the second half of the blocks adds, divided by what the
    quarter before it adds. The ratio is 2 for linear growth, as in pre-norm, and 1 for growth as ln ℓ, as
    with LayerNorm-Scaling. In peri each branch adds 1 to the variance; in post the variance stays 1."""
    variances = {}
    for arm, model in models.items():
        streams = block_effects.stream(model.load().eval(), model.batch()[0])
        variances[arm] = [float(x.double().var(correction=0)) for x in streams]
    values = {}
    for arm in ("pre", "layernorm_scaling"):
        y, L = variances[arm], len(variances[arm]) - 1
        growth = (y[L] - y[L // 2]) / (y[L // 2] - y[L // 4])
        values[f"{arm}: what the second half adds / the quarter before"] = growth
    peri, post = variances["peri"], variances["post"]
    values["peri: variance that a branch adds"] = (peri[-1] - peri[0]) / (2 * (len(peri) - 1))
    values["post: largest |variance − 1|"] = float(np.abs(np.array(post[1:]) - 1).max())
    return values, {arm: numbered(y, 0) for arm, y in variances.items()}


@torch.no_grad()
def layernorm_identity(models: Arms) -> Measured:
    """The largest change of a row's logits, in standard deviations of the logits. The reference is training
    mode with a whole batch. The changes are evaluation mode, the row alone in the batch, and the row cut to
    half its length."""
    values: Values = {}
    points: dict[str, dict[str, float]] = {arm: {} for arm in models}
    for arm, model in models.items():
        net, (idx, _) = model.load(), model.batch()
        T = idx.shape[1] // 2
        evaluated = net.eval()(idx)  # before a forward pass in training mode changes running estimates
        logits = net.train()(idx)
        for kind, changed, before in (
            ("evaluation", evaluated, logits),
            ("alone in the batch", net(idx[:1]), logits[:1]),
            ("half of the length", net(idx[:, :T]), logits[:, :T]),
        ):
            change = values[f"{arm}: {kind}"] = float((changed - before).abs().max() / before.std())
            points[arm][kind] = max(change, 1e-8)
    return values, points


def one_pass(x: Tensor) -> Tensor:
    """Return x normalized by E[x²] − E[x]²: the variance from a sum and a sum of squares."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + 1e-5).sqrt()


@torch.no_grad()
def cancellation(models: Arms, offsets: list[float]) -> Measured:
    """The largest error of normalized rows in fp32, compared with fp64. The mean of the rows is ``offsets``
    standard deviations from 0. Rows that ``one_pass`` turns into NaN are counted separately."""
    settings, nan_shares = models["layernorm"].config, []
    noise = torch.randn(256, settings.model.n_embd, generator=torch.Generator().manual_seed(settings.seed))
    normalizers = {arm: model.load().final for arm, model in models.items()} | {"one pass": one_pass}
    errors: dict[str, dict[float, float]] = {name: {} for name in normalizers}
    for offset, (name, normalize) in product(offsets, normalizers.items()):
        x = noise + offset
        y, exact = normalize(x), F.layer_norm(x.double(), x.shape[1:], eps=1e-5)
        finite = y.isfinite().all(-1)
        errors[name][offset] = float((y - exact)[finite].abs().max())
        nan_shares.append(float((~finite).float().mean()))
    ours, torchs = errors["layernorm"], errors["torch_layernorm"]
    growing = {offset: errors["one pass"][offset] for offset in offsets if 10 <= offset <= 300}
    values = {
        "one pass: slope of its error": log_slope(growing),
        "one pass: largest share of rows that are NaN": max(nan_shares),
        "layernorm: largest error": max(ours.values()),
    }
    farthest_out = math.log10(torchs[max(offsets)] / ours[max(offsets)])
    return values | {"log10 of torch_layernorm's error / layernorm's, farthest out": farthest_out}, errors


# ---------------------------------------------------------------------------------------------------
# BatchNorm's statistics


@torch.no_grad()
def fluctuations(model: Model, batches: Iterable[Tensor]) -> dict[str, float]:
    """Return, by site, how much the batch means of a norm's inputs fluctuate over batches of tokens (B, T),
    in training mode: std(a channel's batch mean) / std(the channel), as root mean square over channels. For n
    independent values per batch the fluctuation is 1/√n."""
    net, moments = model.load().train(), defaultdict[str, list[Tensor]](list)  # (2, C) of each batch
    for idx in batches:
        for site, (x, _) in norm_maps.maps(net, idx).items():
            x = x.flatten(0, 1)  # (B·T, C)
            moments[site].append(torch.stack([x.mean(0), x.square().mean(0)]))
    result = {}
    for site, batch_moments in moments.items():
        means, squares = torch.stack(batch_moments, dim=1)  # both (batches, C)
        variances = squares.mean(0) - means.mean(0).square()
        result[site] = float((means.var(0) / variances).mean().sqrt())
    return result


def batch_spread(models: Arms, rows: list[int], lengths: list[int]) -> Measured:
    """The fluctuation of BatchNorm's batch means before the last block's attention, by the number of rows and
    by the number of time steps of a batch."""
    model = models["batchnorm"]
    site = f"{model.config.model.n_layer - 1:02d}.attn.pre"

    def fluctuation(B: int, T: int) -> float:  # noqa: N803
        return fluctuations(model, (model.batch(step, B)[0][:, :T] for step in range(BATCHES)))[site]

    by_rows = {B: fluctuation(B, lengths[-1]) for B in rows}
    by_length = {T: fluctuation(rows[-1], T) for T in lengths}
    slopes = {"slope against rows": log_slope(by_rows), "slope against time steps": log_slope(by_length)}
    points = {f"rows, of {lengths[-1]} time steps": by_rows, f"time steps, of {rows[-1]} rows": by_length}
    return slopes, points


def batch_fluctuation(models: Arms) -> Measured:
    """The fluctuation of BatchNorm's batch means, divided by that of as many independent values, averaged
    over the norms of the blocks."""
    model = models["batchnorm"]
    independent = (model.config.train.batch_size * model.config.model.block_size) ** -0.5
    by_site = fluctuations(model, (model.batch(UNSEEN + step)[0] for step in range(BATCHES)))
    relative = {site: y / independent for site, y in by_site.items()}
    mean = float(np.mean([y for site, y in relative.items() if site != "final"]))
    return {"fluctuation / that of independent values": mean}, {"anywhere": relative}


# ---------------------------------------------------------------------------------------------------
# Trained models


def angles_trained(models: Arms) -> Measured:
    """The slope, against the block number, of the angle by which a block turns the residual stream. It leaves
    out the last block, where the angle rises again (Gromov et al. 2024, arXiv 2403.17887)."""
    turns = {}
    for arm, model in models.items():
        streams = block_effects.stream(model.load().eval(), model.windows())
        turns[arm] = block_effects.angular_distances(streams)
    slopes = {f"{arm}: slope": slope(range(len(y) - 1), y[:-1]) for arm, y in turns.items()}
    return slopes, {arm: numbered(y) for arm, y in turns.items()}


def alpha_and_std(models: Arms) -> Measured:
    """The correlation of DyT's α with 1 / std of the norm's input: over the steps of training, averaged over
    the norms; and over the norms, at the end of training."""
    model = models["dyt"]
    names = {name for row in model.rows() for name in row if name.startswith("norm.alpha/")}
    points: dict[str, list[tuple[float, float]]] = {}
    for site in sorted(name.removeprefix("norm.alpha/") for name in names):
        alpha, std = (model.curve(name) for name in (f"norm.alpha/{site}", f"act.std/{site}.in"))
        # without the extra rows of the first steps
        steps = [step for step in alpha if step % model.config.stats.every == 0]
        points[site] = [(1 / std[step], alpha[step]) for step in steps]
    values = {
        "over training: correlation": float(np.mean([correlation(pairs) for pairs in points.values()])),
        "over the norms: correlation": correlation([pairs[-1] for pairs in points.values()]),
    }
    return values, points


def correlation(pairs: list[tuple[float, float]]) -> float:
    """Return Pearson's correlation."""
    return float(np.corrcoef(np.transpose(pairs))[0, 1])


def s_shaped_maps(models: Arms) -> Measured:
    """R² of a tanh fitted to a norm's map minus R² of a straight line, averaged over the norms of a block: in
    the last block, and in the last block minus the first."""
    model = models["layernorm"]
    maps = norm_maps.maps(model.load().eval(), model.windows())
    gains = {site: norm_maps.tanh_fit(x, y)[0] - norm_maps.line_fit(x, y) for site, (x, y) in maps.items()}
    blocks = sorted({site[:2] for site in gains if site != "final"})
    by_block = {b: float(np.mean([gains[site] for site in gains if site.startswith(b)])) for b in blocks}
    first, last = by_block[blocks[0]], by_block[blocks[-1]]
    points = {}
    for site in (f"{blocks[0]}.attn.pre", f"{blocks[-1]}.mlp.pre"):
        x, y = maps[site]
        thinned = (t.flatten()[:: max(1, t.numel() // 150)] for t in (x / x.square().mean().sqrt(), y))
        points[f"layernorm, {site}"] = torch.stack([*thinned], dim=1).double().round(decimals=3).tolist()
    return {"layernorm: last block": last, "layernorm: last − first block": last - first}, points


# ---------------------------------------------------------------------------------------------------
# Losses of trained models: val/full_loss, in nats per token; the initial loss if a run diverged


def differences(loss: dict[str, float]) -> Values:
    """Return the absolute and relative differences of all pairs of arms."""
    pairs = [*permutations(loss, 2)]
    values = {f"{arm} − {other}": loss[arm] - loss[other] for arm, other in pairs}
    return values | {f"{arm} / {other} − 1": loss[arm] / loss[other] - 1 for arm, other in pairs}


def final_losses(models: Arms) -> Measured:
    """Each arm's loss, and their differences."""
    loss = {arm: model.loss() for arm, model in models.items()}
    values = {f"loss of {arm}": value for arm, value in loss.items()}
    return values | differences(loss), {arm: model.curve("val/loss") for arm, model in models.items()}


def batch_sizes(models: Grid) -> Measured:
    """The loss with the smallest micro-batches minus the loss with the largest; and the largest difference of
    any loss from the latter. The varied key is train.grad_accum."""
    values, tables = {}, {}
    for arm, by_parts in models.items():
        by_rows = {model.config.train.batch_size // int(n): model.loss() for n, model in by_parts.items()}
        few, many = min(by_rows), max(by_rows)
        values[f"{arm}: loss at {few} − at {many} rows"] = by_rows[few] - by_rows[many]
        largest = max(abs(loss - by_rows[many]) for loss in by_rows.values())
        values[f"{arm}: largest |loss − at {many} rows|"] = largest
        tables[arm] = by_rows
    return values, tables


def losses_of(models: Grid) -> dict[str, dict[float, float]]:
    """Return each arm's loss at each value of the varied key, in ascending order of the values."""
    return {
        arm: {value: model.loss() for value, model in sorted(each.items())} for arm, each in models.items()
    }


def crossing(table: dict[float, float], limit: float, upwards: bool = True) -> float:
    """Return the value at which the loss first exceeds the limit, searching from the best value upwards or
    downwards. It is interpolated linearly in the value's logarithm. If the loss never exceeds the limit,
    return the last value."""
    values = sorted(table, reverse=not upwards)
    within = min(table, key=lambda value: table[value])
    for value in values[values.index(within) + 1 :]:
        if table[value] > limit:
            fraction = (limit - table[within]) / (table[value] - table[within])
            return within * (value / within) ** fraction
        within = value
    return within


def trainable_scales(models: Grid) -> Measured:
    """The range of initialization scales from which a model learns, in decades: log10(largest / smallest
    scale whose loss is at most LEARNED); 0 if there is no such scale."""
    tables, decades = losses_of(models), {}
    for arm, table in tables.items():
        largest, smallest = (crossing(table, LEARNED, upwards) for upwards in (True, False))
        decades[arm] = math.log10(largest / smallest) if min(table.values()) <= LEARNED else 0.0
    pairs = permutations(decades, 2)
    return {f"{arm} − {other}: decades": decades[arm] - decades[other] for arm, other in pairs}, tables


def best_rates(tuning: list[Grid]) -> dict[str, float]:
    """Return each arm's rate with the lowest mean loss over the tuning seeds. The measured seeds take no part
    in the choice: that would make intervals too narrow."""
    best = {}
    for arm, models in tuning[0].items():
        means = {rate: float(np.mean([grid[arm][rate].loss() for grid in tuning])) for rate in models}
        best[arm] = min(means, key=lambda rate: means[rate])
    return best


def certain(rate: float, tried: Collection[float]) -> float:
    """Return 1; NaN if the rate is the lowest or highest that was tried, as a better one may lie beyond."""
    return math.nan if rate in (min(tried), max(tried)) else 1.0


def at_best_rate(models: Grid, tuning: list[Grid]) -> Measured:
    """The differences of losses, each arm at its own best rate. Also log10(an arm's highest rate / the first
    arm's highest rate). The highest rate is the one up to which an arm's loss stays within 10 % of its lowest
    loss."""
    tables, best = losses_of(models), best_rates(tuning)
    values = differences({arm: certain(best[arm], table) * table[best[arm]] for arm, table in tables.items()})
    highest = {arm: crossing(table, 1.1 * min(table.values())) for arm, table in tables.items()}
    first, *others = models
    for arm in others:
        values[f"log10 of {arm}'s highest rate / {first}'s"] = math.log10(highest[arm] / highest[first])
    return values, tables


def steps_to_loss(models: Grid, tuning: list[Grid], target: str) -> Measured:
    """The steps that the arm ``target`` takes to its last val/loss, divided by the steps that each arm takes
    to the same loss; 0 if an arm never reaches it. Each arm has its own best rate. val/full_loss would not
    do, because it is logged only once."""
    best = best_rates(tuning)
    curves = {arm: models[arm][rate].curve("val/loss") for arm, rate in best.items()}
    goal, steps = [*curves[target].values()][-1], {}
    for arm, curve in curves.items():
        steps[arm] = certain(best[arm], models[arm]) * (steps_to(goal, (*curve.items(),)) or math.inf)
    return {f"{target}'s steps / {arm}'s": steps[target] / count for arm, count in steps.items()}, curves
