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

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ROWS, LONGEST, POSITIONS = 2, 128, 4  # rows and, at most, time steps of the test batch; positions t
MODES = ("train", "eval")


def certificate(model: Any, vocab_size: int) -> dict[str, Any]:
    """Measure ``model``, a model.GPT of ``vocab_size`` tokens. It and torch's random numbers stay as they
    are.

    Returns plain data:
        causal, independent_rows: whether ``future``, and ``rows``, is 0 in both modes and in both ways.
        train, eval: ``future``, ``rows``, ``future_gradient``, ``rows_gradient``.
        context: the time steps that were looked at, block_size or 128.
    """
    mode = model.training
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        T = min(model.block_size, LONGEST)
        idx = torch.randint(vocab_size, (ROWS, T), device=next(model.parameters()).device)
        other = (
            idx + torch.randint_like(idx, 1, max(2, vocab_size))
        ) % vocab_size  # another token everywhere
        parameters = visible(model)
        try:
            found = {name: measured(model.train(name == "train"), parameters, idx, other) for name in MODES}
        finally:
            model.train(mode)

    def free_of(kind: str) -> bool:
        return all(found[name][key] == 0 for name in MODES for key in (kind, f"{kind}_gradient"))

    return {"causal": free_of("future"), "independent_rows": free_of("rows"), **found, "context": T}


def leaks(found: dict[str, Any]) -> dict[str, float]:
    """A certificate's numbers as metrics: ``leak.future/train`` and so on."""
    return {f"leak.{kind}/{mode}": value for mode in MODES for kind, value in found[mode].items()}


def in_words(found: dict[str, Any], what: str) -> str:
    """One line on the certificate of the model that ``what`` names."""
    if found["causal"] and found["independent_rows"]:
        return f"causality: in {what} no logit depends on later tokens or on other rows"
    scores = [
        name for mode, name in (("train", "train/loss"), ("eval", "val/loss")) if any(found[mode].values())
    ]
    modes = {"train": "in training", "eval": "in evaluation"}
    moved = [
        f"{modes[mode]} by up to {found[mode]['future']:.2g} when later tokens change, and by "
        f"{found[mode]['rows']:.2g} when other rows do"
        for mode in MODES
        if any(found[mode].values())
    ]
    return (
        f"WARNING: {what} LEAKS: a logit moves {'; '.join(moved)} (in standard deviations of the logits). "
        f"What it scores there is not what a language model scores: do not compare {' or '.join(scores)}"
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
    hook = model.embed.register_forward_hook(lambda module, args, x: embedded.append(x.requires_grad_()))
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
