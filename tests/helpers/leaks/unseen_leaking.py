"""Norms by which logits depend on later tokens or on other rows, invented after the test was
finished, without knowledge of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.leaks.honest import Plain, unit


def _wide(x: Tensor) -> Tensor:
    """At least fp32, for operations that half precision lacks."""
    return x if x.dtype == torch.float64 else x.float()


class ShuffledPartnerNorm(Plain):
    """In train() every row shares its variance, position by position, with a randomly drawn row of the batch.
    Random (the partner is redrawn each call); no leak over time, and none in eval()."""

    def forward(self, x: Tensor) -> Tensor:
        var = x.pow(2).mean(-1, keepdim=True)
        if self.training:
            partner = torch.randperm(x.shape[0], device=x.device)
            var = (var + var[partner]) / 2
        return (x * torch.rsqrt(var + 1e-6) * self.weight).to(x.dtype)


class RunningAfterUpdate(nn.Module):
    """In train() the running variance takes in the whole batch before it is used, so every token sees a tenth
    of the variance of all tokens of all rows; the buffer carries no gradient. No leak in eval()."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.register_buffer("var", torch.ones(n_features))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.var.lerp_(x.pow(2).mean((0, 1)).to(self.var.dtype), 0.1)
        return (x * torch.rsqrt(self.var + 1e-6) * self.weight).to(x.dtype)


class BlockCarryOffByOne(Plain):
    """A causal running power computed in blocks of 8 steps, but the carry already includes the current block:
    tokens see later tokens of their own block, always. The last token of a block sees nothing later."""

    def forward(self, x: Tensor) -> Tensor:
        steps = x.shape[1]
        power = F.pad(x.pow(2).mean(-1), (0, -steps % 8))
        total = power.unflatten(1, (-1, 8)).sum(-1).cumsum(1)
        count = 8 * torch.arange(1, total.shape[1] + 1, device=x.device)
        mean = (total / count).repeat_interleave(8, 1)[:, :steps, None]
        return (x * torch.rsqrt(mean + 1e-6) * self.weight).to(x.dtype)


class EvalReversedScan(Plain):
    """In eval() the running power is summed from the right end, so each token sees all later tokens.
    In train() it is summed from the left and nothing leaks."""

    def forward(self, x: Tensor) -> Tensor:
        power = x.pow(2).mean(-1, keepdim=True)
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        back = power.flip(1).cumsum(1).flip(1) / count.flip(0)
        mean = power.cumsum(1) / count if self.training else back
        return (x * torch.rsqrt(mean + 1e-6) * self.weight).to(x.dtype)


class DilatedCentredConv(nn.Module):
    """A gate from a dilated convolution padded on both sides: token t sees token t+5, exactly that one
    later token, always; sequences of 5 steps or fewer do not leak."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.full((n_features, 1, 3), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        taps = self.taps.to(x.dtype)
        gate = F.conv1d(y.transpose(1, 2), taps, padding=5, dilation=5, groups=x.shape[-1])
        return y * (1 + 0.5 * torch.tanh(gate.transpose(1, 2)))


class FftWrapConv(nn.Module):
    """A causal 8-tap filter done by FFT without zero padding, so it wraps around: the first 7 positions see
    the last 7 tokens, always. All other positions are causal."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(0.6 ** torch.arange(8.0)[:, None].repeat(1, n_features))

    def forward(self, x: Tensor) -> Tensor:
        steps, y = x.shape[1], _wide(unit(x))
        spectrum = torch.fft.rfft(y, steps, dim=1) * torch.fft.rfft(_wide(self.taps), steps, dim=0)
        return torch.fft.irfft(spectrum, steps, dim=1).to(x.dtype)


class BatchWhiten(nn.Module):
    """In train() tokens are decorrelated with the feature covariance of the whole batch, so each token sees
    all tokens of all rows. In eval() the stored covariance is used and nothing leaks."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.register_buffer("cov", torch.eye(n_features))

    def forward(self, x: Tensor) -> Tensor:
        flat, cov = _wide(x).flatten(0, 1), _wide(self.cov)
        if self.training:
            cov = flat.T @ flat / len(flat) + 1e-2 * torch.eye(x.shape[-1], device=x.device)
            self.cov.lerp_(cov.detach().to(self.cov.dtype), 0.1)
        y = torch.linalg.solve_triangular(torch.linalg.cholesky(cov).to(flat.dtype), flat.T, upper=False).T
        return (y.reshape(x.shape) * self.weight).to(x.dtype)


class RampedBatchMix(nn.Module):
    """For its first 50 training calls an RMS norm; then the power of the whole batch is blended in, 1% more
    per call up to half, so every token sees all tokens of all rows, from then on in eval() too."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        own = x.pow(2).mean(-1, keepdim=True)
        share = ((self.calls - 50) / 100).clamp(0, 0.5).to(x.dtype)
        power = own + share * (own.mean() - own)
        return (x * torch.rsqrt(power + 1e-6) * self.weight).to(x.dtype)


class LongSequencePooled(Plain):
    """Above 64 time steps the power is pooled with stride 4 and interpolated back to save work, so a token
    sees up to about 5 later tokens. At 64 steps or fewer each token has its own power and nothing leaks."""

    def forward(self, x: Tensor) -> Tensor:
        power = _wide(x).pow(2).mean(-1)[:, None]
        if x.shape[1] > 64:
            pooled = F.avg_pool1d(power, 4, ceil_mode=True)
            power = F.interpolate(pooled, size=x.shape[1], mode="linear")
        return (x * torch.rsqrt(power.transpose(1, 2) + 1e-6) * self.weight).to(x.dtype)


class TinyMaxOverTime(Plain):
    """Adds a thousandth of each feature's maximum over the whole sequence to every token, always: a weak leak
    from whichever token holds the maximum to all earlier ones."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        return ((y + 1e-3 * y.amax(1, keepdim=True)) * self.weight).to(x.dtype)


class FlattenedShift(nn.Module):
    """Token shift on the flattened batch: the first position of a row gets the last token of the row before
    it, always. Over time it is causal, and the first row gets zeros."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((n_features,), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        flat = unit(x).flatten(0, 1)
        before = F.pad(flat[:-1], (0, 0, 1, 0))
        return (flat + self.mix * before).reshape(x.shape).to(x.dtype)


class ReshapedChannels(Plain):
    """Wants (B, C, T) but reshapes where it should transpose: the 'features' it normalizes over are spread
    over the whole sequence, so tokens see later tokens of their row, always (from 2 steps on)."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.reshape(x.shape[0], x.shape[2], x.shape[1])
        y = y * torch.rsqrt(y.pow(2).mean(1, keepdim=True) + 1e-6)
        return (y.reshape(x.shape) * self.weight).to(x.dtype)


class ExpertChoiceGain(nn.Module):
    """Only the quarter of a row's tokens with the highest scores gets an extra gain, so a later token with a
    high score takes the place of an earlier one, always; the gradients show nothing of it."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.randn(n_features) / n_features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        score = (y * self.score).sum(-1)
        top = score.topk(max(1, x.shape[1] // 4), dim=1).indices
        chosen = torch.zeros_like(score).scatter(1, top, 1.0)
        return (y * (1 + chosen * torch.sigmoid(score))[..., None]).to(x.dtype)


class LengthScaledGain(nn.Module):
    """The gain goes by position divided by sequence length, so every token but the first sees how many tokens
    follow, always. Changing the values of later tokens shows nothing; cutting them off does."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((n_features,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[1], device=x.device)[:, None] / x.shape[1]
        return (unit(x) * (1 + self.slope * where)).to(x.dtype)


class RepeatedTokenDamp(Plain):
    """A token is damped by how often (nearly) the same direction occurs in its row, later repeats included:
    an earlier token changes when it comes again later, else nothing leaks. No gradient passes that way."""

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        likeness = y @ y.transpose(1, 2) / x.shape[-1]
        times = (likeness > 0.98).sum(-1, keepdim=True).clamp(min=1)
        return (y * self.weight / times.sqrt()).to(x.dtype)


class SpikeGuard(nn.Module):
    """If any value of the batch is above 10, the whole batch is scaled down to fit, so one spike changes
    every earlier token and every other row. With all values within 10 nothing leaks."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.ones(n_features))

    def forward(self, x: Tensor) -> Tensor:
        peak = x.detach().abs().amax().clamp(min=10.0)
        return (torch.tanh(self.alpha * x * (10.0 / peak)) * self.weight).to(x.dtype)


class HalfAmaxScale(Plain):
    """For fp16 or bf16 input, values are divided by the largest of the batch to avoid overflow, and the eps
    then weighs by it: each token sees the peak of all tokens and rows. No leak in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if x.dtype in (torch.float16, torch.bfloat16):
            y = x / x.abs().amax().clamp(min=1e-4)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-2) * self.weight).to(x.dtype)


class _CentreGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad - grad.mean(1, keepdim=True)


class CentredGradientNorm(Plain):
    """The forward pass is a plain RMS norm; the backward pass subtracts the gradient's mean over time, so the
    gradients of all time steps mix within a row, whenever gradients are taken. Outputs never leak."""

    def forward(self, x: Tensor) -> Tensor:
        return (_CentreGradient.apply(unit(x)) * self.weight).to(x.dtype)


class PreviousCallTail(nn.Module):
    """A streaming token shift that is never reset: the first position of each row gets the last token that
    the call before left for that row, in train() and eval(). Within one call nothing leaks."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((n_features,), 0.3))
        self.tail = None

    def forward(self, x: Tensor) -> Tensor:
        y = unit(x)
        fits = self.tail is not None and len(self.tail) == len(y)
        first = self.tail.to(y) if fits else torch.zeros_like(y[:, :1])
        self.tail = y[:, -1:].detach()
        return (y + self.mix * torch.cat((first, y[:, :-1]), 1)).to(x.dtype)


class FirstBatchInit(nn.Module):
    """The first call in train() sets weight and bias from the mean and deviation of that batch, so in this
    one call each token sees all tokens of all rows. Later calls and eval() keep them and do not leak."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(v) for v in (torch.ones(n_features), torch.zeros(n_features)))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.ready:
            flat = x.detach().flatten(0, 1)
            self.weight.data.copy_(1 / (flat.std(0, correction=0) + 1e-4))
            self.bias.data.copy_(-flat.mean(0) * self.weight.data)
            self.ready.fill_(True)
        return (x * self.weight + self.bias).to(x.dtype)


class SeedFromData(Plain):
    """In train() the noise on the gain is seeded with a sum over the whole batch to be reproducible, so any
    change in any token or row redraws the noise of all tokens. Repeatable; no leak in eval()."""

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight
        if self.training:
            seed = int(x.detach().double().sum().nan_to_num().abs() * 1000) % 2**31
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
            gain = gain * (1 + 0.05 * noise.to(x))
        return (unit(x) * gain).to(x.dtype)


class NoGradFastPath(Plain):
    """When gradients are switched off, one power per row is taken over all its time steps as a fast path, so
    each token sees all later ones. With gradients on, in train() or eval(), nothing leaks."""

    def forward(self, x: Tensor) -> Tensor:
        dims = -1 if torch.is_grad_enabled() else (1, 2)
        return (x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


class SecondHalfRows(Plain):
    """Takes the batch for two stacked views: the rows of the second half are divided by the power of their
    twins in the first half, always. The first half, and the last row of an odd batch, use their own."""

    def forward(self, x: Tensor) -> Tensor:
        power, half = x.pow(2).mean(-1, keepdim=True), len(x) // 2
        power = torch.cat((power[:half], power[:half], power[2 * half :]))
        return (x * torch.rsqrt(power + 1e-2) * self.weight).to(x.dtype)


class LoudestTokenGain(nn.Module):
    """The gain goes by the distance to the loudest token of the row, so earlier tokens see where a later peak
    is, always; only its index counts, no gradient passes that way."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.depth = nn.Parameter(torch.tensor(0.2))

    def forward(self, x: Tensor) -> Tensor:
        peak = x.pow(2).mean(-1).argmax(1, keepdim=True)
        distance = torch.arange(x.shape[1], device=x.device) - peak
        gain = 1 + self.depth * torch.tanh(distance / 8)[..., None]
        return (unit(x) * gain * self.weight).to(x.dtype)


LEAKING = (
    ShuffledPartnerNorm,
    RunningAfterUpdate,
    BlockCarryOffByOne,
    EvalReversedScan,
    DilatedCentredConv,
    FftWrapConv,
    BatchWhiten,
    RampedBatchMix,
    LongSequencePooled,
    TinyMaxOverTime,
    FlattenedShift,
    ReshapedChannels,
    ExpertChoiceGain,
    LengthScaledGain,
    RepeatedTokenDamp,
    SpikeGuard,
    HalfAmaxScale,
    CentredGradientNorm,
    PreviousCallTail,
    FirstBatchInit,
    SeedFromData,
    NoGradFastPath,
    SecondHalfRows,
    LoudestTokenGain,
)
