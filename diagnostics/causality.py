"""Measure the causality certificate: how far a model's logits depend on tokens on which they must not depend.

The logits at position t may depend only on tokens 0 … t of the same row. Two kinds of leaks are measured on
the actual model, in training and in evaluation mode: dependence on later tokens (``future``) and on the other
rows of the batch (``rows``). Each leak is measured in two ways, and both numbers must be exactly 0:

- forward: replace the forbidden tokens, and take the largest change of a logit, in standard deviations of the
  logits.
- gradient: take the gradient of direction·logits at t with respect to the embedded tokens: ‖forbidden part‖ /
  ‖part at 0 … t‖. The direction is random, as a norm keeps the sum of its outputs or of their squares
  constant: the gradients of these sums would be 0 whatever leaks through the norm.

BatchNorm in training mode has all four leaks, as its statistics are taken over time and rows.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diagnostics.hooks import forward_hooks

ROWS, LONGEST, POSITIONS = 4, 128, 4  # rows and, at most, time steps of the test batch; positions t
MODES = ("train", "eval")


def certificate(model: Any, vocab_size: int) -> dict[str, Any]:
    """Measure the leaks of ``model``, a model.GPT; the model and torch's random state are left unchanged.

    Returns plain data:
        causal, independent_rows: True if ``future`` and its gradient, or ``rows`` and its gradient, are 0 in
            both modes; None if the leaks cannot be measured, and ``reason`` says why.
        train, eval: ``future``, ``rows``, ``future_gradient``, ``rows_gradient``.
        context: the number of time steps of the test batch: block_size, at most 128.
    """
    mode, device = model.training, next(model.parameters()).device
    T = min(model.block_size, LONGEST)
    leaks_by_mode: dict[str, dict[str, float]] = {}
    reason = None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        idx = torch.randint(vocab_size, (ROWS, T), device=device)
        shift = torch.randint(1, max(2, vocab_size), idx.shape, device=device)
        other_tokens = (idx + shift) % vocab_size  # differ from idx everywhere
        try:
            for name in MODES:
                model.train(name == "train")
                leaks_by_mode[name] = measure_leaks(model, without_zeros(model), idx, other_tokens)
        except Exception as error:  # a norm that the user wrote may need other shapes
            reason = f"on a batch of {ROWS} x {T} it raises {type(error).__name__}"
        finally:
            model.train(mode)
    if not all(math.isfinite(leak) for values in leaks_by_mode.values() for leak in values.values()):
        reason = "its logits are not finite"

    def is_free_of(kind: str) -> bool | None:
        if reason:
            return None
        return all(leaks_by_mode[name][key] == 0 for name in MODES for key in (kind, f"{kind}_gradient"))

    verdict = {"causal": is_free_of("future"), "independent_rows": is_free_of("rows"), "reason": reason}
    return verdict | {"context": T} | leaks_by_mode


def leak_metrics(certificate: dict[str, Any]) -> dict[str, float]:
    """Return a certificate's leaks as metrics: ``leak.future/train`` and so on."""
    return {f"leak.{kind}/{mode}": v for mode in MODES for kind, v in certificate.get(mode, {}).items()}


def describe(certificate: dict[str, Any], model_name: str) -> str:
    """Return one line that tells the user what the certificate of ``model_name`` says."""
    if certificate.get("reason"):
        return f"causality: cannot tell whether {model_name} looks into the future: {certificate['reason']}"
    if certificate["causal"] and certificate["independent_rows"]:
        extent = f"{certificate['context']} time steps checked"
        return f"causality: in {model_name} no logit depends on later tokens or on other rows ({extent})"
    leaking = [mode for mode in MODES if any(certificate[mode].values())]
    cause = {"future": "when later tokens change", "rows": "when other rows do"}
    phase = {"train": "in training", "eval": "in evaluation"}
    moves = "; ".join(
        f"{phase[mode]} by up to "
        + ", and by ".join(f"{leak:.2g} {cause[kind]}" for kind in cause if (leak := certificate[mode][kind]))
        for mode in leaking
    )
    losses = " or ".join({"train": "train/loss", "eval": "val/loss"}[mode] for mode in leaking)
    return (
        f"WARNING: {model_name} LEAKS: a logit moves {moves} (in standard deviations of the logits). "
        f"No causal language model can reach such a loss: do not compare {losses}"
    )


def without_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters. Small random numbers replace a parameter that is all 0, as the leaks of a branch
    initialised to 0 cannot be seen."""
    parameters = ((name, p.detach()) for name, p in model.named_parameters())
    return {name: p if p.any() else 0.02 * torch.randn_like(p) for name, p in parameters}


def measure_leaks(
    model: Any, parameters: dict[str, Tensor], idx: Tensor, other_tokens: Tensor
) -> dict[str, float]:
    """Return the four leaks in the model's current mode; ``idx`` and ``other_tokens`` are (ROWS, T)."""

    def logits(tokens: Tensor) -> Tensor:  # (ROWS, T, V)
        torch.manual_seed(0)  # the same dropout masks every time
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return functional_call(model, parameters | buffers, (tokens,))

    embedded: list[Tensor] = []
    with forward_hooks([(model.embed.tokens, lambda _, args, x: embedded.append(x.requires_grad_()))]):
        before = logits(idx)
    [embeddings] = embedded  # (ROWS, T, C)
    direction = torch.randn_like(before[0, 0])

    def logit_change(tokens: Tensor) -> Tensor:  # (T, V): in the first row, in standard deviations
        with torch.no_grad():
            return (logits(tokens)[0] - before[0]).abs() / before.std().clamp(min=1e-30)

    other_rows = torch.cat([idx[:1], other_tokens[1:]])
    by_kind: dict[str, list[Tensor]] = {
        "future": [],
        "rows": [logit_change(other_rows).max()],
        "future_gradient": [],
        "rows_gradient": [],
    }
    T = idx.shape[1]
    for t in torch.linspace(0, max(0, T - 2), POSITIONS).long().unique().tolist():
        tokens = idx.clone()
        tokens[0, t + 1 :] = other_tokens[0, t + 1 :]
        by_kind["future"].append(logit_change(tokens)[: t + 1].max())
        (gradient,) = torch.autograd.grad(before[0, t] @ direction, embeddings, retain_graph=True)
        past_norm = gradient[0, : t + 1].norm().clamp(min=1e-30)
        by_kind["future_gradient"].append(gradient[0, t + 1 :].norm() / past_norm)
        by_kind["rows_gradient"].append(gradient[1:].norm() / past_norm)
    return {kind: torch.stack(values).max().item() for kind, values in by_kind.items()}
