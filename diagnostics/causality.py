"""The causality certificate: how far do a model's logits depend on what they must not know?

The logits at position t may depend on tokens 0 … t of their own row. What else they depend on is measured on
the model at hand, in training and in evaluation mode: later tokens (``future``), and the other rows of the
batch (``rows``). Both in two ways, and each must be exactly 0:

- forward: other tokens in the place of those that must not matter. The largest change of a logit, in standard
  deviations of the logits.
- gradient: of the logits at t with respect to the embedded tokens. The norm of its part at those that must
  not matter, over the norm of its part at 0 … t. The cotangent is random, as a sum of logits or of their
  squares is what a norm holds constant: it would hide what goes through one.

BatchNorm in training mode fails all four, as its statistics run over time and rows.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ROWS, LONGEST, POSITIONS = 4, 128, 4  # rows and, at most, time steps of the test batch; positions t
MODES = ("train", "eval")


def certificate(model: Any, vocab_size: int) -> dict[str, Any]:
    """Measure ``model``, a model.GPT. It and torch's random numbers stay as they are.

    Returns plain data:
        causal, independent_rows: whether ``future``, and ``rows``, is 0 in both modes and in both ways; None
            where that cannot be told, and ``reason`` says why.
        train, eval: ``future``, ``rows``, ``future_gradient``, ``rows_gradient``.
        context: the time steps that were looked at, block_size or 128.
    """
    mode, device = model.training, next(model.parameters()).device
    T = min(model.block_size, LONGEST)
    found: dict[str, dict[str, float]] = {}
    reason = None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        idx = torch.randint(vocab_size, (ROWS, T), device=device)
        shift = torch.randint(1, max(2, vocab_size), idx.shape, device=device)
        other = (idx + shift) % vocab_size  # another token everywhere
        try:
            for name in MODES:
                found[name] = measured(model.train(name == "train"), visible(model), idx, other)
        except Exception as error:  # of a norm of the user's own, which trains on other shapes than these
            reason = f"on a batch of {ROWS} x {T} it raises {type(error).__name__}"
        finally:
            model.train(mode)
    if not all(math.isfinite(value) for leaks in found.values() for value in leaks.values()):
        reason = "its logits are not finite"

    def free_of(kind: str) -> bool | None:
        if reason:
            return None
        return all(found[name][key] == 0 for name in MODES for key in (kind, f"{kind}_gradient"))

    verdict = {"causal": free_of("future"), "independent_rows": free_of("rows"), "reason": reason}
    return verdict | {"context": T} | found


def leaks(found: dict[str, Any]) -> dict[str, float]:
    """A certificate's numbers as metrics: ``leak.future/train`` and so on."""
    return {f"leak.{kind}/{mode}": v for mode in MODES for kind, v in found.get(mode, {}).items()}


def in_words(found: dict[str, Any], what: str) -> str:
    """One line on the certificate of the model that ``what`` names."""
    if found.get("reason"):
        return f"causality: whether {what} looks into the future cannot be told: {found['reason']}"
    if found["causal"] and found["independent_rows"]:
        steps = f"{found['context']} time steps looked at"
        return f"causality: in {what} no logit depends on later tokens or on other rows ({steps})"
    said = {"train": ("in training", "train/loss"), "eval": ("in evaluation", "val/loss")}
    leaking = [mode for mode in MODES if any(found[mode].values())]
    when = {"future": "when later tokens change", "rows": "when other rows do"}
    moved = "; ".join(
        f"{said[mode][0]} by up to "
        + ", and by ".join(f"{found[mode][kind]:.2g} {when[kind]}" for kind in when if found[mode][kind])
        for mode in leaking
    )
    return (
        f"WARNING: {what} LEAKS: a logit moves {moved} (in standard deviations of the logits). What it "
        f"scores there no language model can: do not compare {' or '.join(said[mode][1] for mode in leaking)}"
    )


def visible(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, with small random numbers for those that are all 0: a branch that begins at 0 would
    hide what it sees."""
    parameters = ((name, p.detach()) for name, p in model.named_parameters())
    return {name: p if p.any() else 0.02 * torch.randn_like(p) for name, p in parameters}


def measured(model: Any, parameters: dict[str, Tensor], idx: Tensor, other: Tensor) -> dict[str, float]:
    """The four leaks, in the mode that ``model`` is in; ``idx`` and ``other`` are (ROWS, T) tokens."""

    def logits(tokens: Tensor) -> Tensor:  # (ROWS, T, V)
        torch.manual_seed(0)  # the same dropout masks every time
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return functional_call(model, parameters | buffers, (tokens,))

    embedded: list[Tensor] = []
    hook = model.embed.tokens.register_forward_hook(
        lambda module, args, x: embedded.append(x.requires_grad_())
    )
    try:
        before = logits(idx)
    finally:
        hook.remove()
    [x] = embedded  # (ROWS, T, C)
    cotangent = torch.randn_like(before[0, 0])

    def change(tokens: Tensor) -> Tensor:  # (T, V): of the first row's logits, in standard deviations
        with torch.no_grad():
            return (logits(tokens)[0] - before[0]).abs() / before.std().clamp(min=1e-30)

    found = {"future": [], "rows": [change(torch.cat([idx[:1], other[1:]])).max()]}
    found |= {"future_gradient": [], "rows_gradient": []}
    T = idx.shape[1]
    for t in torch.linspace(0, max(0, T - 2), POSITIONS).long().unique().tolist():
        tokens = idx.clone()
        tokens[0, t + 1 :] = other[0, t + 1 :]
        found["future"].append(change(tokens)[: t + 1].max())
        (gradient,) = torch.autograd.grad(before[0, t] @ cotangent, x, retain_graph=True)
        own = gradient[0, : t + 1].norm().clamp(min=1e-30)
        found["future_gradient"].append(gradient[0, t + 1 :].norm() / own)
        found["rows_gradient"].append(gradient[1:].norm() / own)
    return {kind: torch.stack(values).max().item() for kind, values in found.items()}
