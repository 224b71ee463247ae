"""Measure the causality certificate: how much a model's logits depend on tokens that they must not see.

The logits at position t may depend only on tokens 0 … t of the same row. A test, here called a question,
exchanges some tokens of a batch and runs a forward: the logits at all other tokens must not move. It calls
the model as a run does: in the run's precision; in training with gradients enabled; in evaluation under
inference_mode, with as many rows as evaluation has. The kinds of leaks are:

- ``future``: each row has a cut t; the tokens after it are exchanged.
- ``rows``: all tokens of some rows are exchanged.
- ``memory``: in evaluation, another batch is evaluated before.
- ``future_gradient``, ``rows_gradient``: in training, for some rows, the gradient of direction·logits at one
  cut t with respect to the embedded tokens. The leak is ‖part at forbidden tokens‖ / ‖part at 0 … t‖. It
  shows leaks that are too small to see in a forward, and leaks of the backward alone. The direction is
  random, because a norm may keep the sum of its outputs constant, and the gradient of that sum would be 0.

``future``, ``rows`` and ``memory`` are in standard deviations of the logits. A model without leaks has
exactly 0 for each kind. Small leaks are measured again in fp64; one that vanishes there was rounding. In
training mode BatchNorm has all kinds except ``memory``, because it takes statistics over time and rows.

No such test can find code that behaves differently while it is tested: docs/norms.md says what is not found.
"""

import copy
import math
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import Attend
from probe.hooks import buffers_kept

Autocast = Callable[[], AbstractContextManager[Any]]
Batches = tuple[Tensor, Tensor]  # the tested batch, and one with other tokens; each (B, T) int64

ROWS, STEPS = 4, 256  # of the random batch: its rows, and at most so many time steps
ENOUGH = 8  # first cuts: if they show a leak and rows depend on each other, the others are not tested
COMMON_CUTS = 64  # fewest cuts in a thorough test if rows depend on each other and share each cut
GRADIENTS = 3  # number of rows whose gradient is taken
DRAWS = 4  # number of seeds with which a model that draws random numbers is tested
SMALL = 1e-3  # a smaller leak may be rounding and is measured again in fp64
FP64_ROUNDING = 1e-12

PHASES = {"train": "in training", "eval": "in evaluation"}  # by mode
MODES = tuple(PHASES)
FUTURE = ("future", "future_gradient")
OTHERS = ("rows", "rows_gradient", "memory")
CALLS, NUMBERS = "the number of its calls", "random numbers"


class UntestableError(Exception):
    """A model cannot be tested; the message says why."""


def certificate(
    model: Any,
    vocab_size: int,
    tokens: Batches | None = None,
    *,
    eval_tokens: Batches | None = None,
    thorough: bool = True,
    autocast: Autocast = nullcontext,
    seed: int = 0,
    initial: bool = True,
) -> dict[str, Any]:
    """Measure the leaks of ``model``, a model.GPT. The model and torch's random numbers stay unchanged.

    Args:
        tokens: the training batch, and a batch from which replacements are taken; by default ROWS random
            rows.
        eval_tokens: the same for evaluation; by default ``tokens``.
        thorough: test every cut and every pair of rows. Otherwise test one cut per row, and exchange half of
            the rows. This takes at most 12 forwards, or more if something looks like a leak.
        autocast: computes in the precision of the run.
        seed: of the cuts, of the groups of rows and of the random numbers that the model draws.
        initial: whether the model is untrained; then its parameters are moved a little: see ``perturb``.

    Returns plain data:
        causal, independent_rows: True if all leaks of later tokens, or of other rows, are 0; None if that
            cannot be tested, and ``reason`` says why.
        varies: what makes the output for the same tokens vary, such as "random numbers in training".
        train, eval: the leaks by kind.
        rows, context: B and T in training. ``shortened``: the model's context, if random rows are shorter.
        asked: for each mode, the number of tested ``cuts``, of ``all_cuts``, and of ``rows``.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    result: dict[str, Any] = {"reason": None, "varies": [], "asked": {}}
    if tokens is None:
        tokens = random_tokens(vocab_size, ROWS, min(model.block_size, STEPS), generator)
        result |= {"shortened": model.block_size} if model.block_size > STEPS else {}
    result["rows"], result["context"] = tokens[0].shape
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        idx, _ = tokens
        try:
            model = copy.deepcopy(model)
            if initial:
                perturb(model)
            for mode, (idx, other) in zip(MODES, (tokens, eval_tokens or tokens), strict=True):
                batches = idx.to(device), different(idx, other, vocab_size, generator).to(device)
                subject = Subject(model, mode == "train", autocast, batches)
                result["varies"] += [f"{what} {PHASES[mode]}" for what in subject.varies]
                result[mode] = subject.leaks(thorough, generator)
                result["asked"][mode] = subject.asked
        except UntestableError as error:
            result["reason"] = str(error)
        except Exception as error:  # whatever a user's norm raises
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error}, at {Path(frame.filename).name}:{frame.lineno}"
            result["reason"] = f"on a batch of {len(idx)} x {idx.shape[1]} it raises {where}"
    return {"causal": is_free_of(FUTURE, result), "independent_rows": is_free_of(OTHERS, result)} | result


class Subject:
    """A model in one mode, and the batch on which it is tested. Every question goes to a new copy with the
    same parameters, buffers, attributes and random numbers; the model itself is not touched.

    Attributes:
        varies: what makes the output for the same tokens vary, besides dropout: CALLS, NUMBERS.
        asked: how many ``cuts`` of ``all_cuts``, and how many ``rows``, the method ``leaks`` tested.

    Raises:
        UntestableError: the output is not finite, or varies although nothing else does.
    """

    def __init__(self, model: nn.Module, training: bool, autocast: Autocast, batches: Batches) -> None:
        self.model, self.training, self.autocast = model.requires_grad_(False), training, autocast
        self.idx, self.other = batches
        first, self.varies = self.copy(), list[str]()
        with buffers_kept(first) if training else nullcontext():  # in training buffers may change
            self.reference = self.logits(first, self.idx)
            draws = random_state() != self.state_before
        self.second = self.logits(first, self.idx)
        if not torch.equal(self.second, self.reference):
            if not torch.equal(self.logits(self.copy(), self.idx), self.reference):
                raise UntestableError("its output for the same tokens differs each time")
            self.varies.append(CALLS)
        if draws:
            without_dropout = self.copy()
            remove_dropout(without_dropout)
            self.logits(without_dropout, self.idx)
            self.varies += [NUMBERS] * (random_state() != self.state_before)

    def copy(self) -> nn.Module:
        return copy.deepcopy(self.model).train(self.training)

    def logits(self, model: nn.Module, tokens: Tensor, draw: int = 0) -> Tensor:
        """Return the logits of a copy, (B, T, V), under the random numbers of seed ``draw``. The forward may
        change the copy's buffers and attributes."""
        torch.manual_seed(draw)
        self.state_before = random_state()
        with self.autocast(), torch.enable_grad() if self.training else torch.inference_mode():
            logits: Tensor = model(tokens)
        if not logits.isfinite().all():
            raise UntestableError("its logits are not finite")
        return logits

    def leaks(self, thorough: bool, generator: torch.Generator) -> dict[str, float]:
        """Return the leaks by kind."""
        leaks = self.not_rounding(lambda subject: subject.by_forwards(thorough, generator), generator)
        if self.training:
            return leaks | self.not_rounding(lambda subject: subject.by_gradients(generator), generator)
        return leaks | {"memory": self.memory()}

    def not_rounding(
        self, measure: Callable[["Subject"], dict[str, float]], generator: torch.Generator
    ) -> dict[str, float]:
        """Return the leaks that ``measure`` finds; 0 if they are small and vanish in fp64."""
        state = generator.get_state()
        leaks = measure(self)
        if 0 < max(leaks.values(), default=0.0) < SMALL:
            generator.set_state(state)  # the same cuts again
            precise = Subject(
                copy.deepcopy(self.model).double(), self.training, KeepsFp64, (self.idx, self.other)
            )
            if max(measure(precise).values(), default=0.0) < FP64_ROUNDING:
                return dict.fromkeys(leaks, 0.0)
        return leaks

    def by_forwards(self, thorough: bool, generator: torch.Generator) -> dict[str, float]:
        """Return the largest change of a logit when later tokens are exchanged, and when other rows are.
        There are B rows, T time steps and T−1 cuts; after cut t come the tokens t+1 … T−1.

        If rows depend on each other, all rows share each cut. With a cut of its own, a row might change
        because of another row."""
        B, T = self.idx.shape
        bits = torch.randperm(B, generator=generator) >> torch.arange((B - 1).bit_length())[:, None] & 1
        # (groups, B): of any two rows, each is in a group without the other
        groups = torch.cat([bits, 1 - bits]).bool() if thorough else bits[:1].bool()
        order = torch.randperm(T - 1, generator=generator)
        starts = torch.arange(0, T - 1, B)[: None if thorough else 1]  # thorough: each cut in one row
        rows = self.largest_change(groups[..., None].expand(-1, B, T))
        if rows:
            count = max(len(starts), COMMON_CUTS) if thorough else ENOUGH
            cuts = order[:count, None].expand(-1, B)
        else:
            cuts = order[(starts[:, None] + torch.arange(B)) % max(1, T - 1)]
        later = torch.arange(T) > cuts[..., None]  # (rounds, B, T)
        future = self.largest_change(later[:ENOUGH])
        if not (rows and future > SMALL):
            future = max(future, self.largest_change(later[ENOUGH:]))
        self.asked = {"cuts": len(cuts.unique()), "all_cuts": T - 1, "rows": B}
        return {"future": future, "rows": rows}

    def largest_change(self, questions: Tensor) -> float:
        """Return the largest change in the logits of the tokens that stay, in standard deviations of all
        logits. ``questions``: which tokens are exchanged, (questions, B, T) bool."""
        change = 0.0
        for draw in range(DRAWS if NUMBERS in self.varies else 1):
            reference = self.logits(self.copy(), self.idx, draw) if draw else self.reference
            for exchanged in questions.to(self.idx.device):
                tokens = torch.where(exchanged, self.other, self.idx)
                moved = (self.logits(self.copy(), tokens, draw) - reference).abs().amax(-1)
                change = max(change, (moved[~exchanged].max() / reference.std().clamp(min=1e-30)).item())
        return change

    def by_gradients(self, generator: torch.Generator) -> dict[str, float]:
        """Return the leaks that gradients show, for some rows, each with a cut of its own."""
        model, embedded = self.copy(), list[Tensor]()
        tokens = model.get_submodule("embed.tokens")
        tokens.register_forward_hook(lambda _, args, x: embedded.append(x.requires_grad_()))
        logits = self.logits(model, self.idx)
        leaks = dict.fromkeys(("future_gradient", "rows_gradient"), 0.0)
        if not logits.requires_grad:  # they depend on no token
            return leaks
        B, T = self.idx.shape
        direction = torch.randn(logits.shape[-1], generator=generator).to(logits)
        cuts = torch.randint(max(1, T - 1), (B,), generator=generator).tolist()
        for row in torch.randperm(B, generator=generator)[:GRADIENTS].tolist():
            picked = logits[row, cuts[row]] @ direction
            (gradient,) = torch.autograd.grad(picked, embedded, retain_graph=True)
            past, later = gradient[row].tensor_split([cuts[row] + 1])
            others = torch.cat([gradient[:row], gradient[row + 1 :]])
            for kind, forbidden in zip(leaks, (later, others), strict=True):
                size = (forbidden.norm() / past.norm().clamp(min=1e-30)).item()
                if not math.isfinite(size):  # too large for a float: forwards alone decide
                    return {}
                leaks[kind] = max(leaks[kind], size)
        return leaks

    def memory(self) -> float:
        """Return how far a logit moves if another batch was evaluated before."""
        model = self.copy()
        self.logits(model, self.other)
        moved = (self.second - self.logits(model, self.idx)).abs().max()
        return (moved / self.second.std().clamp(min=1e-30)).item()


class KeepsFp64(TorchFunctionMode):
    """Keep fp64 where a model casts to fp32, e.g. by ``x.float()``: rounding would look like a leak."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].to(torch.float64, copy=True)
        kwargs = kwargs or {}
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        if kwargs.get("dtype") is torch.float32:
            kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)

    def __enter__(self) -> "KeepsFp64":
        self.dtype = torch.get_default_dtype()  # of the constants that a forward makes
        torch.set_default_dtype(torch.float64)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self.dtype)


# ---------------------------------------------------------------------------------------------------
# Random numbers, tokens and parameters


def random_state() -> tuple[bytes, ...]:
    """Return what changes if torch draws a random number."""
    of_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return tuple(state.numpy().tobytes() for state in (torch.get_rng_state(), *of_gpu))


def remove_dropout(model: nn.Module) -> None:
    """Set the probability of every dropout module to 0."""
    for module in model.modules():
        if isinstance(module, Attend):
            module.dropout = 0.0
        elif isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def random_tokens(
    vocab_size: int, rows: int, steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two batches of random tokens, (rows, steps) each."""
    idx, other = torch.randint(vocab_size, (2, rows, steps), generator=generator)
    return idx, other


def different(idx: Tensor, other: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
    """Return ``other``, changed where it equals ``idx``, so that they differ everywhere."""
    idx, other = idx.cpu(), other.cpu()
    shift = torch.randint(1, vocab_size, idx.shape, generator=generator)
    return torch.where(idx == other, (idx + shift) % vocab_size, other)


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Add noise of std 0.02 to the parameters that are trained. Without it, a gate or kernel that starts at 0
    would hide the leak behind it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=0.02)


# ---------------------------------------------------------------------------------------------------
# What a certificate says


def is_free_of(kinds: tuple[str, ...], result: dict[str, Any]) -> bool | None:
    """Return whether all leaks of these kinds are 0; None if that is unknown."""
    leaks = [result[mode].get(kind, 0) for mode in MODES if mode in result for kind in kinds]
    return False if any(leak > 0 for leak in leaks) else None if result["reason"] else True


def leak_metrics(certificate: dict[str, Any]) -> dict[str, float]:
    """Return a certificate's leaks as metrics: ``leak.future/train`` and so on."""
    return {
        f"leak.{kind}/{mode}": float(leak)  # a file has infinity as a string
        for mode in MODES
        for kind, leak in certificate.get(mode, {}).items()
    }


def describe(certificate: dict[str, Any], model_name: str) -> str:
    """Return one line that tells the user what the certificate of ``model_name`` says."""
    varies = " and ".join(certificate["varies"])
    note = f"; its output for the same tokens varies with {varies}" if varies else ""
    if any(certificate[key] is False for key in ("causal", "independent_rows")):
        modes = [mode for mode in MODES if any(certificate.get(mode, {}).values())]
        losses = " or ".join({"train": "train/loss", "eval": "val/loss"}[mode] for mode in modes)
        is_future = certificate["causal"] is False
        why = "is not a causal language model's" if is_future else "depends on other rows or batches"
        moves = describe_moves(certificate)
        return f"WARNING: {model_name} LEAKS: {moves}. Its loss {why}: do not compare {losses}{note}"
    if certificate["reason"]:
        return f"causality: cannot tell whether {model_name} looks into the future: {certificate['reason']}"
    return (
        f"causality: in {model_name} no logit depends on later tokens or on other rows "
        f"({extent(certificate)}){note}"
    )


def extent(certificate: dict[str, Any]) -> str:
    """Return how much was tested, such as ``tested: all 63 positions, 32 rows``, in the mode with fewer
    cuts."""
    asked = min(certificate["asked"].values(), key=lambda of_mode: of_mode["cuts"])
    if not asked["all_cuts"]:
        return f"tested: {asked['rows']} rows; there are no later tokens"
    count = "all" if asked["cuts"] == asked["all_cuts"] else f"{asked['cuts']} of"
    shortened = certificate.get("shortened")
    whole = f" in a context of {certificate['context']}, not {shortened:,}" if shortened else ""
    return f"tested: {count} {asked['all_cuts']} positions{whole}, {asked['rows']} rows"


CAUSES = {
    "future": "when later tokens change",
    "rows": "when other rows change",
    "memory": "when another batch was evaluated before",
}


def describe_moves(certificate: dict[str, Any]) -> str:
    """Return by how much a logit of a leaking model moves in each mode, and why."""
    moves = []
    for mode in MODES:
        if any((leaks := certificate.get(mode, {})).values()):
            sizes = [f"{float(leaks[kind]):.2g} {why}" for kind, why in CAUSES.items() if leaks.get(kind)]
            size = f"up to {' and '.join(sizes)}" if sizes else "less than a forward shows"
            moves.append(f"{PHASES[mode]} by {size}")
    return f"a logit moves {'; '.join(moves)} (in standard deviations of the logits)"
