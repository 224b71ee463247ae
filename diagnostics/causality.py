"""Measure the causality certificate: how far a model's logits depend on tokens on which they must not depend.

The logits at position t may depend only on tokens 0 … t of the same row. The model is tested as a run uses
it: on the run's batch, in its precision, in training and in evaluation mode.

- ``future``: at every cut, the tokens after the cut are exchanged, and no logit up to it may move. In one
  forward each row has a cut of its own; if rows depend on each other, all rows share one cut, as otherwise
  another row's exchanged tokens would look like later ones.
- ``rows``: some rows are exchanged, and no logit of the others may move, for every pair of rows.
- ``future_gradient``, ``rows_gradient``: of half of the rows, each at one cut t, the gradient of
  direction·logits at t with respect to the embedded tokens: ‖forbidden part‖ / ‖part at 0 … t‖. It shows
  leaks that are too small for a forward. The direction is random: a norm may keep the sum of its outputs, or
  of their squares, constant, and the gradient of that sum is 0.
- ``memory``: in evaluation, a batch follows another one, and no logit may depend on the earlier one.
- ``future_compiled``, ``rows_compiled``: ``future`` and ``rows`` of the compiled loss, in nats.

All of these are exactly 0 without a leak; changes that fp64 proves to be rounding are not counted.
``future``, ``rows`` and ``memory`` are in standard deviations of the logits. In training mode BatchNorm
has all of these leaks but ``memory``, as its statistics are taken over time and rows.

The calls: ``certificate`` → ``measure_mode`` → ``Questions.leaks`` → ``all_changes`` → ``changes`` →
``exchange.change_at_cuts`` and ``change_between_rows``. A run calls ``certificate`` in training/certify.py.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics.contract import described, line_of
from diagnostics.exchange import needed_rounds
from diagnostics.questions import Questions
from diagnostics.repeatable import Repeated, UntestableError, random_states_kept, seed_all

ROWS = 4  # of the random batch that is tested if no tokens are given
QUICK_STEPS, QUICK_ROUNDS = 256, 16  # the most of both in ``quick_certificate``
PHASES = {"train": "in training", "eval": "in evaluation"}  # by mode
MODES = tuple(PHASES)
FUTURE = ("future", "future_gradient", "future_compiled")
OTHERS = ("rows", "rows_gradient", "rows_compiled", "memory")


def certificate(
    model: Any,
    vocab_size: int,
    tokens: tuple[Tensor, Tensor] | None = None,
    rounds: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    compiled_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    seed: int = 0,
    initial: bool = True,
) -> dict[str, Any]:
    """Measure the leaks of ``model``, a model.GPT; the model and all random states are left unchanged.

    Args:
        tokens: two batches (B, T), int64: the tested one, and one from which replacement tokens are taken; by
            default both are random.
        rounds: number of forwards in which cuts are tested, one cut per row; by default ⌈(T−1)/B⌉, which
            test each cut in one row. T−1 test every cut in every row. If rows depend on each other, all rows
            share a cut, in at most max(rounds, 64) forwards.
        autocast: computes in the precision of the run.
        compiled_loss: tokens, targets -> mean loss, 0-d, in training; it may not change the model's buffers.
        seed: of the random cuts and groups of rows.
        initial: whether the model is untrained; then its parameters are moved a little: see ``perturbed``.

    Returns plain data:
        causal, independent_rows: True if all leaks of later tokens, or of other rows, are 0; None if that
            cannot be tested, and ``reason`` says why.
        varies: what makes the output for the same tokens vary, such as "random numbers in training".
        train, eval: the leaks by kind.
        rounding: the largest change that fp64 proved to be rounding; missing if there was none.
        rows, context: B and T.
        asked: by mode: the number of ``cuts``, of ``all_cuts``; ``rows``; ``cut_rows``, the share of all
            pairs of a cut and a row.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    idx, other = tokens or random_tokens(vocab_size, ROWS, model.block_size, generator)
    idx, other = idx.to(device), different(idx, other, vocab_size, generator).to(device)
    shape = {"rows": len(idx), "context": idx.shape[1]}
    rounds = needed_rounds(*idx.shape) if rounds is None else rounds
    result: dict[str, Any] = {"reason": None, "varies": [], "asked": {}} | shape
    with random_states_kept(device):
        seed_all(seed)
        parameters = perturbed(model) if initial else {n: p.detach() for n, p in model.named_parameters()}
        try:
            for mode in MODES:
                repeated = Repeated(model, mode == "train", autocast, parameters)
                questions = Questions(repeated, idx, other, generator)
                measure_mode(questions, mode, rounds, compiled_loss, result)
        except UntestableError as error:
            result["reason"] = str(error)
        except Exception as error:  # whatever a norm raises that the user wrote
            why = f"{described(error)}{line_of(error)}"
            result["reason"] = f"on a batch of {len(idx)} x {idx.shape[1]} it raises {why}"
    return {"causal": is_free_of(FUTURE, result), "independent_rows": is_free_of(OTHERS, result)} | result


def quick_certificate(model: Any, vocab_size: int, initial: bool = True) -> dict[str, Any]:
    """Return the certificate of a model that may be large: on random tokens, of a context of at most
    QUICK_STEPS, at cuts in at most QUICK_ROUNDS forwards (64 if rows depend on each other). ``shortened`` is
    the model's context if it is longer."""
    steps = min(model.block_size, QUICK_STEPS)
    tokens = random_tokens(vocab_size, ROWS, steps, torch.Generator().manual_seed(1))
    rounds = min(needed_rounds(ROWS, steps), QUICK_ROUNDS)
    result = certificate(model, vocab_size, tokens, rounds, initial=initial)
    return result | ({"shortened": model.block_size} if steps < model.block_size else {})


def measure_mode(
    questions: Questions,
    mode: str,
    rounds: int,
    compiled_loss: Callable[[Tensor, Tensor], Tensor] | None,
    result: dict[str, Any],
) -> None:
    """Test the model in one mode, and add the leaks to ``result``."""
    result[mode], result["asked"][mode] = questions.leaks(rounds)
    if mode == "train" and compiled_loss and not questions.varies:
        result[mode] |= questions.compiled_leaks(compiled_loss, rounds)
    if mode == "eval":
        result[mode] |= questions.memory()
    result["varies"] += [f"{what} {PHASES[mode]}" for what in questions.varies]
    if questions.rounding is not None:
        result["rounding"] = max(questions.rounding, result.get("rounding", 0.0))
    if not all(map(math.isfinite, result[mode].values())):
        raise UntestableError("its logits are not finite")


def is_free_of(kinds: tuple[str, ...], result: dict[str, Any]) -> bool | None:
    """Return whether all leaks of these kinds are 0; None if that cannot be said."""
    leaks = [result[mode].get(kind, 0) for mode in MODES if mode in result for kind in kinds]
    return False if any(leak > 0 for leak in leaks) else None if result["reason"] else True


def leak_metrics(certificate: dict[str, Any]) -> dict[str, float]:
    """Return a certificate's leaks as metrics: ``leak.future/train`` and so on."""
    return {f"leak.{kind}/{mode}": v for mode in MODES for kind, v in certificate.get(mode, {}).items()}


def describe(certificate: dict[str, Any], model_name: str) -> str:
    """Return one line that tells the user what the certificate of ``model_name`` says."""
    varies = " and ".join(certificate.get("varies", []))
    note = f"; its output for the same tokens varies with {varies}" if varies else ""
    if any(certificate[key] is False for key in ("causal", "independent_rows")):
        return describe_leaks(certificate, model_name) + note
    if certificate["reason"]:
        return f"causality: cannot tell whether {model_name} looks into the future: {certificate['reason']}"
    return (
        f"causality: in {model_name} no logit depends on later tokens or on other rows "
        f"({extent(certificate)}){note}"
    )


def extent(certificate: dict[str, Any]) -> str:
    """Return what was tested: ``tested: all 63 positions, all 32 rows, 40% of their pairs``; the lesser of
    two modes."""
    if "asked" not in certificate:  # of an earlier version
        return "tested: 4 positions"
    asked = min(certificate["asked"].values(), key=lambda of_mode: of_mode["cuts"])
    count = "all" if asked["cuts"] == asked["all_cuts"] else f"{asked['cuts']} of"
    positions, rows = f"{count} {asked['all_cuts']} positions", f"all {asked['rows']} rows"
    if whole := certificate.get("shortened"):
        positions += f" in a context of {certificate['context']}, not {whole:,}"
    share = "under 1%" if asked["cut_rows"] < 0.005 else f"{asked['cut_rows']:.0%}"
    if not asked["all_cuts"]:
        return f"tested: {rows}; there are no later tokens"
    return f"tested: {positions}, {rows}, {share} of their pairs"


CAUSES = {
    "future": "when later tokens change",
    "rows": "when other rows change",
    "memory": "when another batch was evaluated before",
}


def describe_leaks(certificate: dict[str, Any], model_name: str) -> str:
    losses = " or ".join({"train": "train/loss", "eval": "val/loss"}[mode] for mode in leaking(certificate))
    is_future = certificate["causal"] is False
    why = "is not a causal language model's" if is_future else "depends on other rows or batches"
    return (
        f"WARNING: {model_name} LEAKS: {describe_moves(certificate)}. Its loss {why}: do not compare {losses}"
    )


def leaking(certificate: dict[str, Any]) -> list[str]:
    """Return the modes in which a model leaks."""
    return [mode for mode in MODES if any(certificate.get(mode, {}).values())]


def describe_moves(certificate: dict[str, Any]) -> str:
    """Return by how much a logit, or the compiled loss, of a leaking model moves in each mode, and why."""
    moves = []
    for mode in leaking(certificate):
        if not any(leak for kind, leak in certificate[mode].items() if not kind.endswith("_compiled")):
            continue
        sizes = [f"{leak:.2g} {why}" for kind, why in CAUSES.items() if (leak := certificate[mode].get(kind))]
        size = f"up to {' and '.join(sizes)}" if sizes else "less than a forward shows"
        moves.append(f"{PHASES[mode]} by {size}")
    phrases = [f"a logit moves {'; '.join(moves)} (in standard deviations of the logits)"] if moves else []
    compiled = {kind: certificate.get("train", {}).get(f"{kind}_compiled") for kind in ("future", "rows")}
    nats = [f"{leak:.2g} nats {CAUSES[kind]}" for kind, leak in compiled.items() if leak]
    phrases += [f"the compiled loss moves by up to {' and '.join(nats)}"] if nats else []
    return "; ".join(phrases)


def random_tokens(
    vocab_size: int, rows: int, steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two batches of random tokens, (rows, steps) each."""
    idx, other = torch.randint(vocab_size, (2, rows, steps), generator=generator)
    return idx, other


def different(idx: Tensor, other: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
    """Return ``other`` with other tokens where it has those of ``idx``."""
    idx, other = idx.cpu(), other.cpu()
    shift = torch.randint(1, max(2, vocab_size), idx.shape, generator=generator)
    return torch.where(idx == other, (idx + shift) % vocab_size, other)


def perturbed(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, moved at random by the std of GPT-2's initialization: otherwise a leak behind a
    gate or a kernel that is initialised to 0 would stay hidden. What is not trained stays as it is."""
    return {
        name: p.detach() + 0.02 * torch.randn_like(p) if p.requires_grad else p.detach()
        for name, p in model.named_parameters()
    }
