# %% [markdown]
# # Normalization in a GPT: a tour
#
# This notebook takes you from the formula of LayerNorm to a fair comparison of two norms. It has five parts:
#
# 1. LayerNorm by hand, and what sets it apart from BatchNorm
# 2. BatchNorm in a language model: it sees the future
# 3. Where a norm is placed, and how large activations become
# 4. Training with and without a norm, and a verdict
# 5. A norm of your own
#
# Every claim is followed by a cell that measures it, and an `assert` fails if it is not so. The whole
# notebook takes two to three minutes on two cores. No GPU is needed.
#
# **Before you start.** The notebook needs the folder of the project, in which it is `docs/tour.ipynb`. In
# Colab, upload this folder as `normgpt.zip`, and run in a new cell:
#
# ```
# !unzip -q normgpt.zip
# %pip install -r normgpt/requirements.txt
# ```
#
# If pip asks you to restart the runtime, do so once.
#
# Where the project is installed: `pip install notebook`, then `jupyter notebook docs/tour.ipynb`.

# %%
import sys
from pathlib import Path

here = Path.cwd()
found = [f for f in (here, *here.parents, *here.glob("*")) if (f / "model/norms.py").is_file()]
if not found:
    raise FileNotFoundError(f"{here} is not in the project's folder, nor has it in it: see the text above")
ROOT = found[0]
sys.path.insert(0, str(ROOT))

# %%
import json
import os
import subprocess
import tempfile

import altair as alt
import numpy as np
import torch
from scipy import stats
from torch import nn

from model import GPT
from model.batchnorms import BatchNorm
from model.layers import XAVIER
from model.norms import LayerNorm
from model.placements import Output, Peri, Post, Pre
from probe.activations import Activations, without_effects
from probe.causality import certificate
from probe.metric_names import selection
from study.report import load

WORK = Path(tempfile.mkdtemp())  # the notebook writes all its files here
alt.renderers.enable("svg")


def lines(rows, x, y, **scale):
    """Return a figure with a line for each value of "arm"."""
    chart = alt.Chart(alt.InlineData(values=rows), width=480, height=200).mark_line(point=True)
    color = alt.Color("arm:N", title=None, sort=None)
    return chart.encode(x=alt.X(f"{x}:Q"), y=alt.Y(f"{y}:Q", scale=alt.Scale(**scale)), color=color)


def difference(a, b):
    return (a - b).abs().max().item()


# %% [markdown]
# ## 1. LayerNorm
#
# LayerNorm (Ba et al. 2016) takes the vector $x$ of one token, with $C$ features:
#
# $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \cdot \text{weight} + \text{bias}, \qquad
# \mu = \frac1C \sum_i x_i, \qquad \sigma^2 = \frac1C \sum_i (x_i - \mu)^2$$
#
# Weight and bias are learned. They begin at 1 and 0, so at first only the fraction matters. The cell computes
# it by hand and compares it with the project's LayerNorm and with torch's.


# %%
def by_hand(x, eps=1e-5):  # (…, C) -> the same
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps)


torch.manual_seed(0)
x = 3 + 2 * torch.randn(8, 32, 128)  # (B, T, C): rows, time steps, features
y = by_hand(x)
print(f"mean {y.mean().abs():.5f}, mean square {y.square().mean():.5f}")
for norm in (LayerNorm(128), nn.LayerNorm(128)):
    print(f"{type(norm).__module__:30} differs by at most {difference(norm(x), y):.0e}")
    assert difference(norm(x), y) < 1e-5

# %% [markdown]
# **The variance is the biased one, with $1/C$.** The unbiased variance, with $1/(C-1)$, estimates the
# variance of a population from a sample. Here nothing is estimated: the features are all there is, and $y$
# should have mean square 1. With $1/(C-1)$ the mean square is $(C-1)/C$: the outputs are too small, and
# weights that were trained with one of the two norms do not fit the other.


# %%
def unbiased(x, eps=1e-5):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, correction=1, keepdim=True) + eps)


print("  C   mean square with 1/C   with 1/(C−1)")
for C in (2, 4, 128):
    rows = 100 * torch.randn(1000, C)
    biased_square, unbiased_square = (norm(rows).square().mean().item() for norm in (by_hand, unbiased))
    print(f"{C:3}   {biased_square:20.4f}   {unbiased_square:12.4f}")
    assert abs(biased_square - 1) < 1e-3
    assert abs(unbiased_square - (C - 1) / C) < 1e-3

# %% [markdown]
# **Ours centres first and squares then, and it centres twice.** The formula $E[x^2] - E[x]^2$ is the same
# variance on paper. In floating point it subtracts two large, nearly equal numbers if the mean is large, and
# few correct digits are left. Centring first avoids that. But the mean itself is rounded, in fp32 to about 7
# digits, so after centring an offset of up to $6 \cdot 10^{-8} \cdot |\mu|$ remains. Centring once more
# removes it. The cell adds an offset to rows with a standard deviation of 1, and compares each way, in fp32,
# with the same rows in fp64.


# %%
def cancelling(x, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(x.square().mean(-1, keepdim=True) - mean.square() + eps)


print("  offset   E[x²] − E[x]²   centred once   centred twice")
for offset in (0, 100, 1e4, 1e6):
    rows = offset + torch.randn(1000, 128)
    exact = by_hand(rows.double())
    errors = [difference(norm(rows), exact) for norm in (cancelling, by_hand, LayerNorm(128))]
    print(f"{offset:8.0f}   {errors[0]:13.0e}   {errors[1]:12.0e}   {errors[2]:13.0e}")
    assert errors[2] < 1e-5
assert not errors[0] < 1  # at the largest offset the result is wrong, or NaN
assert errors[1] > 100 * errors[2]

# %% [markdown]
# ### What LayerNorm promises, and BatchNorm does not
#
# BatchNorm (Ioffe & Szegedy 2015) has the same formula, but $\mu$ and $\sigma^2$ belong to a feature and run
# over the batch. From this follow four differences. We show each with a small GPT, or with the norm alone.
#
# **The same computation in training and in evaluation.** In evaluation BatchNorm uses running estimates in
# place of the batch's statistics, so it is another function. LayerNorm is the same one.

# %%
torch.manual_seed(0)
SIZES = {"vocab_size": 65, "block_size": 32, "n_layer": 4, "n_head": 4, "n_embd": 64, "placement": Pre}
idx = torch.randint(65, (8, 32))  # (B, T) tokens


@torch.no_grad()
def logits_of(gpt, idx, training):
    return gpt.train(training)(idx)  # (B, T, V)


for norm in (LayerNorm, BatchNorm):
    gpt = GPT(norm=norm, **SIZES)
    for _ in range(100):  # until BatchNorm's estimates have settled
        logits_of(gpt, torch.randint(65, (8, 32)), training=True)
    change = difference(logits_of(gpt, idx, training=False), logits_of(gpt, idx, training=True))
    print(f"{norm.__name__}: evaluation differs from training by up to {change:.1e}")
    assert (change == 0) == (norm is LayerNorm)

# %% [markdown]
# **Any batch size, even 1.** With LayerNorm a row gets the same logits alone as among others, up to rounding.
# With BatchNorm in training they change, and with one row and one token there is no variance at all.

# %%
for norm in (LayerNorm, BatchNorm):
    gpt = GPT(norm=norm, **SIZES)
    together = logits_of(gpt, idx, training=True)[:1]
    alone = logits_of(gpt, idx[:1], training=True)
    print(f"{norm.__name__}: alone, the logits of a row differ by up to {difference(alone, together):.1e}")
    assert (difference(alone, together) < 1e-5) == (norm is LayerNorm)

token = torch.randn(1, 1, 64)
print("LayerNorm of one token: mean square", f"{LayerNorm(64)(token).square().mean():.4f}")
try:
    BatchNorm(64)(token)
    raise AssertionError("BatchNorm took a single value")
except ValueError as error:
    print(error)

# %% [markdown]
# **Recurrent networks, and several devices.** A recurrent network uses one norm at every time step. With
# LayerNorm the final state of a sequence depends on this sequence only; with BatchNorm it changes with the
# sequences beside it. For the same reason a batch can be split between devices: LayerNorm has nothing to
# exchange between them. BatchNorm has to synchronize its statistics (the project's does so), or each device
# normalizes differently.

# %%
W, U = torch.randn(2, 64, 64) / 8


def last_state(norm, x):  # (B, T, C) -> (B, C)
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(norm(x[:, t] @ W + h @ U))
    return h


with torch.no_grad():
    x = torch.randn(8, 20, 64)
    others = torch.cat([x[:1], torch.randn(7, 20, 64)])  # the same first sequence
    for norm in (LayerNorm(64), BatchNorm(64)):
        recurrent = difference(last_state(norm, x)[0], last_state(norm, others)[0])
        devices = difference(torch.cat([norm(half) for half in x.chunk(2)]), norm(x))
        print(f"{type(norm).__name__}: other sequences {recurrent:.1e}, two devices {devices:.1e}")
        assert (recurrent < 1e-5) == (devices < 1e-5) == isinstance(norm, LayerNorm)

# %% [markdown]
# **BatchNorm's running mean is not the batch's mean.** It is an average over earlier batches: each step moves
# it by a tenth of the distance (`momentum=0.1`). It begins at 0, lags behind, and averages out the noise of
# single batches. LayerNorm has no such buffers.

# %%
norm = BatchNorm(64)
print("batches   batch's mean   running mean")
for step in range(1, 101):
    batch = 3 + torch.randn(8, 32, 64)
    norm(batch)
    if step in (1, 10, 100):
        print(f"{step:7}   {batch[..., 0].mean():12.4f}   {norm.running_mean[0]:12.4f}")
    assert norm.running_mean[0] != batch[..., 0].mean()
print("after one batch it should be 0.1 · 3; buffers of LayerNorm:", len([*LayerNorm(64).buffers()]))

# %% [markdown]
# ## 2. BatchNorm in a language model sees the future
#
# A language model predicts each token from the tokens before it, so its logits at position $t$ must not
# depend on later tokens. BatchNorm's statistics run over all positions. The cell changes the last token of
# every row, in the training mode, and measures how far the logits before it move.

# %%
CHANGE = "change in standard deviations"
last = idx.shape[1] - 1
changed = idx.clone()
changed[:, last] = (idx[:, last] + 1) % 65
rows = []
for norm in (LayerNorm, BatchNorm):
    gpt = GPT(norm=norm, **SIZES)
    before, after = (logits_of(gpt, tokens, training=True) for tokens in (idx, changed))
    moved = ((after - before).abs().amax((0, 2)) / before.std()).tolist()  # by position
    rows += [{"arm": norm.__name__, "position": t, CHANGE: moved[t]} for t in range(last)]
    print(f"{norm.__name__}: earlier logits move by up to {max(moved[:last]):.2g} standard deviations")
    assert (max(moved[:last]) == 0) == (norm is LayerNorm)
lines(rows, "position", CHANGE, zero=True)

# %% [markdown]
# So in training each logit of the BatchNorm model carries traces of the very tokens that it should predict.
# Its training loss is not the loss of a language model. In evaluation the running estimates are constants,
# and the model is causal.
#
# The project tests every run like this, at its start and its end, at all positions, between rows, and by
# gradients, too. The result is the **certificate of causality**. Runs that leak are marked in every table.
# The certificate exchanges more tokens than we did, so logits move further.

# %%
for norm in (LayerNorm, BatchNorm):
    answer = certificate(GPT(norm=norm, **SIZES), vocab_size=65)
    print(f"{norm.__name__}: causal {answer['causal']}, independent rows {answer['independent_rows']}")
    for mode in ("train", "eval"):
        print(f"  {mode:5}  later tokens {answer[mode]['future']:.2g}, other rows {answer[mode]['rows']:.2g}")
    assert answer["causal"] == (norm is LayerNorm)
    assert answer["eval"]["future"] == 0

# %% [markdown]
# ## 3. Where a norm is placed
#
# A block has two branches $f$, attention and MLP, and each adds to the residual stream $x$. The placement
# says where the norms stand around a branch:
#
# | placement | equation | final norm |
# |---|---|---|
# | pre | $x \leftarrow x + f(\text{norm}(x))$ | yes |
# | post | $x \leftarrow \text{norm}(x + f(x))$ | no |
# | peri | $x \leftarrow x + \text{norm}(f(\text{norm}(x)))$ | yes |
# | output | $x \leftarrow x + \text{norm}(f(x))$ | yes |
#
# The cell measures the size of the stream (its root mean square) after each block, before any training, in
# models of 12 blocks. The weights are drawn by Xavier's rule, as in the original Transformer.

# %%
ARMS = {
    "none": (nn.Identity, Pre),
    "pre": (LayerNorm, Pre),
    "post": (LayerNorm, Post),
    "peri": (LayerNorm, Peri),
    "output": (LayerNorm, Output),
}
RMS = "rms of the stream"
rows, size = [], {}
for arm, (norm, placement) in ARMS.items():
    gpt = GPT(**SIZES | {"norm": norm, "placement": placement, "n_layer": 12, "init": XAVIER})
    with torch.no_grad(), Activations(gpt, selection(["act.rms"], sites=["*.mlp"])) as values:
        without_effects(gpt)(idx)
    size[arm] = [values[f"act.rms/{block:02}.mlp"].item() for block in range(12)]
    rows += [{"arm": arm, "block": block, RMS: rms} for block, rms in enumerate(size[arm])]
    print(f"{arm:6}", *(f"{rms:6.2f}" for rms in size[arm]))
assert max(abs(rms - 1) for rms in size["post"]) < 0.01
assert size["none"][-1] > 10 * size["none"][0]
assert 4 < size["peri"][-1] < 6  # 24 branches add a variance of about 1 each: √24 = 4.9
lines(rows, "block", RMS, type="log")

# %% [markdown]
# Without a norm the stream is multiplied by a factor in each block: it grows exponentially, a straight line
# in this picture with its logarithmic axis. With `pre`, `peri` and `output` each branch adds a summand whose
# size does not grow with the stream: the variance grows in proportion to depth at most. `post` brings the
# stream back to 1 after each branch.

# %% [markdown]
# ## 4. Train, compare, read the verdict
#
# One command declares a study and trains GPTs with and without LayerNorm. All see the same batches, and those
# with the same seed start from the same weights. These are three runs of each arm, of 300 steps; each has a
# folder with its settings, metrics and certificate.


# %%
def python(*words, status=0, **environ):
    """Run a program of the project, which should end with ``status``, and return what it prints."""
    command, environ = [sys.executable, *map(str, words)], os.environ | environ
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, encoding="utf-8")
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


SETTINGS = (
    "model.n_embd=64 train.batch_size=16 train.steps=300 train.eval_every=0 data.val_fraction=0.02".split()
)
SETTINGS += "optim.learning_rate=3e-3 train.threads=1 wandb.mode=disabled".split()
SETTINGS += "model.init_scale=1 schedule.warmup_fraction=0.1".split()  # GPT-2's small weights
SETTINGS += [f"runs_dir={WORK / 'runs'}", f"studies_dir={WORK / 'studies'}"]
table = python("ablate.py", "study=norms", "norm=layernorm,none", "placement=pre", "seeds=3", *SETTINGS)
folders = sorted((WORK / "runs").glob("*-s*"))
for folder in folders:
    end = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    print(f"{folder.name.rpartition('-')[0]:20} val/full_loss {end['val/full_loss']:.3f} nats per character")
assert len(folders) == 6

# %% [markdown]
# Each run without a norm is compared with the run of the same seed with LayerNorm: they began with the same
# weights, apart from the norms, and saw the same batches. So each seed gives a difference.

# %%
baseline, without_norm = load(WORK / "studies/norms").rows
seeds = baseline.seeds
differences = np.array([without_norm.losses[seed] - baseline.losses[seed] for seed in seeds])
print("differences in nats, by seed:", *(f"{difference:+.3f}" for difference in differences))

# %% [markdown]
# One of these numbers alone would not say how much they vary. From the variation of all three comes an
# interval, made so that 96 % of such intervals contain the true mean difference (Student's t). The study
# computed it, too; this is the end of what it printed:

# %%
mean, deviation = differences.mean(), differences.std(ddof=1)
half = stats.t.ppf(1 - 0.04 / 2, len(seeds) - 1) * deviation / np.sqrt(len(seeds))
print(table[table.index("Of 1 arm") : table.index("page: ")])
assert np.allclose([without_norm.low, without_norm.high], [mean - half, mean + half])
assert without_norm.outcome == "worse"
assert without_norm.low > 0

# %% [markdown]
# Read the table from left to right: the mean loss of each arm, the mean difference with its interval, the
# verdict: `worse`, as the interval lies above 0. The verdicts of a study hold together: the more arms it
# compares, the wider are its intervals, so the chance that any verdict is false is at most 5 %.
#
# ### Is training faster with LayerNorm?
#
# The learning curves say by how much, in this setting. We take the mean training loss over the seeds, and ask
# at which step the model with LayerNorm reaches the last loss of the one without. A step with LayerNorm takes
# more time, so we also print seconds.


# %%
def rows_of(arm, seed):
    """Return the logged rows of a run."""
    [folder] = (WORK / "runs").glob(f"{arm}-pre-s{seed}-*")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


loss, seconds = {}, {}
for arm in ("layernorm", "none"):
    runs = [rows_of(arm, seed) for seed in seeds]
    steps = [row["step"] for row in runs[0] if "train/loss" in row]
    by_step = zip(*([row["train/loss"] for row in run if "train/loss" in row] for run in runs), strict=True)
    loss[arm] = dict(zip(steps, (sum(losses) / 3 for losses in by_step), strict=True))
    seconds[arm] = sorted(run[-1]["seconds"] for run in runs)[1]

target = loss["none"][steps[-1]]
reached = next(step for step in steps if loss["layernorm"][step] <= target)
print(f"training loss {target:.2f}: at step {steps[-1]} without a norm, at step {reached} with LayerNorm")
print(f"median time of a run: {seconds['layernorm']:.0f} s with LayerNorm, {seconds['none']:.0f} s without")
assert reached < steps[-1] / 2
rows = [{"arm": arm, "step": s, "train/loss": v} for arm in loss for s, v in loss[arm].items()]
lines(rows, "step", "train/loss", zero=False)

# %% [markdown]
# So at equal steps and at this learning rate training is faster, even if a step takes somewhat longer. (The
# times above are those of the computer that ran the cell, with whatever else it had to do.) This does not
# show that it is so at every rate: the peak at the beginning suggests that the rate is too high for the model
# without norms. For a fair comparison `python ablate.py study=fair` tries 16 settings for each arm, and
# compares each arm at its own best ones, on ten seeds. That takes over an hour. The project comes with
# two such studies, of five seeds each, which tuned over other ranges:

# %%
for folder in ("results/reference", "results/atlas"):
    tuned = next(row for row in load(ROOT / folder).rows if row.title == "norm=none placement=pre")
    print(f"{folder}: {tuned.outcome}, by {tuned.difference:.3f} [{tuned.low:.3f}, {tuned.high:.3f}] nats")
    assert tuned.outcome == "worse"

# %% [markdown]
# Both say "worse", but not by how much: an interval covers the noise of seeds, not other settings.

# %% [markdown]
# ## 5. A norm of your own
#
# A norm is a class that is made with the number of features and keeps the shape of its input. With a YAML
# file beside it, the command line can choose it. This one divides by the mean absolute value in place of the
# root mean square.

# %%
CLASS = '''
import torch
from torch import nn


class L1Norm(nn.Module):
    """y = x / (mean |x| + ε) · weight, the mean over the features of each token."""

    def __init__(self, n_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n_features))

    def forward(self, x):  # (…, T, C) -> the same
        size = x.float().abs().mean(-1, keepdim=True)
        return (x / (size + self.eps) * self.weight).to(x.dtype)
'''
MINE = WORK / "mine"
(MINE / "norm").mkdir(parents=True)
(MINE / "mynorms.py").write_text(CLASS, encoding="utf-8")
(MINE / "norm" / "l1.yaml").write_text("_target_: mynorms.L1Norm\neps: 1e-5\n", encoding="utf-8")


def check(norm, status=0):
    words = ("--config-dir", MINE, f"norm={norm}", "model.n_layer=1", "model.n_embd=32")
    return python("-m", "scripts.check_norm", *words, status=status, PYTHONPATH=str(MINE))


print(check("l1"))

# %% [markdown]
# Each line is a promise that a norm has to keep, such as that it leaves its input as it is, that training can
# be resumed, and that it is causal. A norm that takes its mean over time, too, breaks the last one:

# %%
(MINE / "leaky.py").write_text(CLASS.replace("mean(-1, keepdim", "mean((-1, -2), keepdim"), encoding="utf-8")
(MINE / "norm" / "leaky.yaml").write_text("_target_: leaky.L1Norm\n", encoding="utf-8")
print(checked := check("leaky", status=1))
assert "causality    NO" in checked

# %% [markdown]
# A norm that passes can be trained and compared like any other:
#
# ```sh
# export PYTHONPATH=mine
# python train.py --config-dir mine -m norm=layernorm,l1 seed=0,1,2
# python compare.py runs
# ```
#
# `docs/own-norm.md` has the contract, `docs/library.md` shows how to use the model without the command line,
# and `python -m findings` measures published claims about norms again.
