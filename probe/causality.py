"""Measure the causality certificate: how much a model's logits depend on tokens that they must not see.

The logits at position t may depend only on tokens 0 … t of the same row. A question exchanges some tokens
of a batch and runs a forward: the logits of all tokens that stay must not move. The model is called as a run
calls it: in the run's precision, in training with gradients enabled, in evaluation under inference_mode and
with as many rows as evaluation has. The leaks by kind:

- ``future``: each row has a cut t; the tokens after it are exchanged.
- ``rows``: all tokens of some rows are exchanged.
- ``memory``: in evaluation, another batch comes first.
- ``future_gradient``, ``rows_gradient``: in training, at one cut t of half of the rows, the gradient of
  direction·logits at t with respect to the embedded tokens: ‖forbidden part‖ / ‖part at 0 … t‖. It shows
  leaks that are too small for a forward, and leaks of the backward alone. The direction is random: a norm may
  keep the sum of its outputs constant, and the gradient of that sum is 0.

``future``, ``rows`` and ``memory`` are in standard deviations of the logits. Each leak is exactly 0 in a
model that has none; small ones are measured again in fp64, and what vanishes there was rounding. In training
mode BatchNorm has all of them but ``memory``, because its statistics are taken over time and rows.

No such test finds code that behaves differently while it is tested: docs/norms.md says what is not found.
"""

import copy
import itertools
import math
import random
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import Attend

Autocast = Callable[[], AbstractContextManager[Any]]
Batches = tuple[Tensor, Tensor]  # the tested batch, and one with other tokens; each (B, T) int64
# exchanged tokens, (B, T) bool -> largest change in the logits of the tokens that stay
Ask = Callable[[Tensor], float]

ROWS, STEPS = 4, 256  # of the random batch; STEPS at most
ENOUGH = 8  # if so many cuts of dependent rows show a leak, the others need no test
COMMON_CUTS = 64  # dependent rows share a cut: least number of forwards in a thorough test
DRAWS = 4  # a model that draws random numbers is tested with so many different ones
SMALL = 1e-3  # a smaller leak may be rounding, which fp64 would show
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
    """Measure the leaks of ``model``, a model.GPT. The model and all random states stay unchanged.

    Args:
        tokens: the training batch, and a batch from which replacements are taken; by default ROWS random
            rows.
        eval_tokens: the same for evaluation; by default ``tokens``.
        thorough: test every cut and every pair of rows. Otherwise each row has one cut and half of the rows
            are exchanged, in at most 12 forwards; only what looks like a leak takes more.
        autocast: computes in the precision of the run.
        seed: of the cuts, of the groups of rows and of the random numbers that the model draws.
        initial: whether the model is untrained; then its parameters are moved a little: see ``perturbed``.

    Returns plain data:
        causal, independent_rows: True if all leaks of later tokens, or of other rows, are 0; None if that
            cannot be tested, and ``reason`` says why.
        varies: what makes the output for the same tokens vary, such as "random numbers in training".
        train, eval: the leaks by kind.
        rounding: the largest change that fp64 proved to be rounding; missing if there was none.
        rows, context: B and T in training. ``shortened``: the model's context, if random rows are shorter.
        asked: by mode: the number of ``cuts``, of ``all_cuts``, of ``rows``; ``cut_rows``, the share of all
            pairs of a cut and a row.
    """
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    result: dict[str, Any] = {"reason": None, "varies": [], "asked": {}}
    if tokens is None:
        tokens = random_tokens(vocab_size, ROWS, min(model.block_size, STEPS), generator)
        result |= {"shortened": model.block_size} if model.block_size > STEPS else {}
    result["rows"], result["context"] = tokens[0].shape
    with random_states_kept(device):
        seed_all(seed)
        parameters = perturbed(model) if initial else {n: p.detach() for n, p in model.named_parameters()}
        try:
            if vocab_size == 1:
                raise UntestableError("its vocabulary has one token, which cannot be exchanged")
            for mode, (idx, other) in zip(MODES, (tokens, eval_tokens or tokens), strict=True):
                batches = idx.to(device), different(idx, other, vocab_size, generator).to(device)
                subject = Subject(model, parameters, mode == "train", autocast, batches)
                result["varies"] += [f"{what} {PHASES[mode]}" for what in subject.varies]
                changes = partial(ask_all, shape=idx.shape, generator=generator, thorough=thorough)
                result[mode], result["asked"][mode], rounding = measure(subject, changes, generator)
                if rounding:
                    result["rounding"] = max(rounding, result.get("rounding", 0.0))
                if not all(map(math.isfinite, result[mode].values())):
                    raise UntestableError("its logits are not finite")
        except UntestableError as error:
            result["reason"] = str(error)
        except Exception as error:  # whatever a norm raises that the user wrote
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error}, at {Path(frame.filename).name}:{frame.lineno}"
            result["reason"] = f"on a batch of {len(idx)} x {idx.shape[1]} it raises {where}"
    return {"causal": is_free_of(FUTURE, result), "independent_rows": is_free_of(OTHERS, result)} | result


# ---------------------------------------------------------------------------------------------------
# Questions. B rows, T time steps, T−1 cuts; after cut t come the tokens t+1 … T−1.


def ask_all(
    ask: Ask, shape: torch.Size, generator: torch.Generator, thorough: bool
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the largest change when other rows, and when later tokens, are exchanged; and how many cuts and
    rows were asked. If rows depend on each other, all rows share a cut: a change at a row's own cut may come
    from another row."""
    B, T = shape
    groups = row_groups(B, generator)
    rows = largest(ask(group[:, None].expand(B, T)) for group in (groups if thorough else groups[:1]))
    count = math.ceil((T - 1) / B) if thorough else 1  # thorough: each cut in one row
    if rows:
        count = max(count, COMMON_CUTS) if thorough else ENOUGH
        cuts = [torch.full((B,), int(t)) for t in torch.randperm(T - 1, generator=generator)[:count]]
    else:
        cuts = cut_rounds(B, T, count, generator)
    later = [torch.arange(T) > each[:, None] for each in cuts]
    future = largest(map(ask, later[:ENOUGH]))
    if not (rows and future > SMALL):
        future = max(future, largest(map(ask, later[ENOUGH:])))
    asked_cuts = len(cuts) if rows else min(T - 1, B * len(cuts))
    asked = {"cuts": asked_cuts, "all_cuts": T - 1, "rows": B, "cut_rows": len(cuts) / max(1, T - 1)}
    return {"future": future, "rows": rows}, asked


def largest(changes: Iterable[float]) -> float:
    """Return the largest change, NaN if one is; 0 for none."""
    every = [0.0, *changes]
    return math.nan if any(map(math.isnan, every)) else max(every)


def cut_rounds(rows: int, steps: int, count: int, generator: torch.Generator) -> list[Tensor]:
    """Return the cuts of each row, (B,), in at most T−1 rounds. Every cut is asked of one row before any is
    asked of a second."""
    n = steps - 1
    order = torch.randperm(n, generator=generator)
    starts = [*range(0, n, rows)]
    starts += [start for start in torch.randperm(n, generator=generator).tolist() if start % rows]
    return [order[(start + torch.arange(rows)) % n] for start in starts[:count]] if n else []


def row_groups(rows: int, generator: torch.Generator) -> list[Tensor]:
    """Return sets of rows, (B,) bool, the fewest by which each row is exchanged at least once without each
    other row: n sets of which every row is in ⌊n/2⌋, no two rows in the same ones (Sperner 1928)."""
    if rows == 1:
        return []
    n = next(n for n in itertools.count(2) if math.comb(n, n // 2) >= rows)
    memberships = itertools.islice(itertools.combinations(range(n), n // 2), rows)
    member = torch.zeros(rows, n, dtype=torch.bool)
    for row, sets in zip(torch.randperm(rows, generator=generator), memberships, strict=True):
        member[row, list(sets)] = True
    return [*member.unbind(1)]


# ---------------------------------------------------------------------------------------------------
# A model that is asked


class Subject:
    """A model in one mode, with a batch. Every call is of a new copy, with the same parameters, buffers,
    attributes and random numbers; the model itself is not touched.

    Attributes:
        reference: the logits for the batch, (B, T, V).
        second: the logits of a second call of the same copy.
        varies: what makes the output for the same tokens vary, besides dropout: CALLS, NUMBERS.

    Raises:
        UntestableError: the output is not finite, or varies although nothing else does.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, Tensor],
        training: bool,
        autocast: Autocast,
        batches: Batches,
    ) -> None:
        self.model, self.parameters, self.training, self.autocast = model, parameters, training, autocast
        self.idx, self.other = batches
        model = self.copy()
        state = copy.deepcopy(model.state_dict())
        self.reference = self.logits(model, self.idx)
        draws = random_states() != self.states_before
        if not self.reference.isfinite().all():
            raise UntestableError("its logits are not finite")
        if training:  # its state may move from call to call
            model.load_state_dict(state, strict=False)
        self.second = self.logits(model, self.idx)
        self.varies = []
        if not torch.equal(self.second, self.reference):
            if not torch.equal(self(self.idx), self.reference):
                raise UntestableError("it gives another output each time for the same tokens")
            self.varies.append(CALLS)
        if draws:
            plain = self.copy()
            remove_dropout(plain)
            self.logits(plain, self.idx)
            if random_states() != self.states_before:
                self.varies.append(NUMBERS)

    def __call__(self, tokens: Tensor, draw: int = 0) -> Tensor:
        return self.logits(self.copy(), tokens, draw)

    def copy(self) -> nn.Module:
        """Return a copy of the model in its mode, whose parameters need no gradients."""
        parameters = {
            id(old): nn.Parameter(self.parameters[name].clone(), requires_grad=False)
            for name, old in self.model.named_parameters()
        }
        return copy.deepcopy(self.model, parameters).train(self.training)

    def logits(self, model: nn.Module, tokens: Tensor, draw: int = 0) -> Tensor:
        """Return the logits of a copy, whose buffers and attributes the forward may move."""
        seed_all(draw)
        self.states_before = random_states()
        mode = torch.enable_grad() if self.training else torch.inference_mode()
        with self.autocast(), mode:
            logits: Tensor = model(tokens)
        return logits

    def ask(self, draw: int = 0) -> Ask:
        """Return an Ask that measures logits in standard deviations of all logits, under the random numbers
        of seed ``draw``."""
        reference = self.reference if draw == 0 else self(self.idx, draw)
        scale = reference.std().clamp(min=1e-30)

        def ask(exchanged: Tensor) -> float:
            exchanged = exchanged.to(self.idx.device)
            moved = (self(torch.where(exchanged, self.other, self.idx), draw) - reference).abs().amax(-1)
            return (moved[~exchanged].max() / scale).item()

        return ask

    def in_fp64(self) -> "Subject":
        """Return the same in fp64, with rounding errors of 1e-16."""
        parameters = {n: p.double() if p.is_floating_point() else p for n, p in self.parameters.items()}
        model, batches = copy.deepcopy(self.model).double(), (self.idx, self.other)
        return Subject(model, parameters, self.training, KeepsFp64, batches)

    def gradients(self, generator: torch.Generator) -> dict[str, float]:
        """Return the leaks by gradients of half of the rows, each at a cut of its own; if there is one, those
        of one row alone, which tells later tokens from other rows."""
        model, embedded = self.copy(), list[Tensor]()
        tokens = model.get_submodule("embed.tokens")
        tokens.register_forward_hook(lambda _, args, x: embedded.append(x.requires_grad_()))
        logits = self.logits(model, self.idx)
        leaks = dict.fromkeys(("future_gradient", "rows_gradient"), 0.0)
        if not logits.requires_grad:  # they depend on no token
            return leaks
        B, T = self.idx.shape
        direction = torch.randn(logits.shape[-1], generator=generator).to(logits)
        cuts = torch.randint(max(1, T - 1), (B,), generator=generator)
        later = (torch.arange(T) > cuts[:, None])[..., None].to(logits.device)
        half = torch.randperm(B, generator=generator)[: max(1, B // 2)]
        for rows in (half, half[:1]):
            picked = (logits[rows, cuts[rows]] @ direction).sum()
            (gradient,) = torch.autograd.grad(picked, embedded, retain_graph=True)
            asked = torch.zeros_like(later)
            asked[rows] = True
            past = gradient.masked_fill(later | ~asked, 0).norm().clamp(min=1e-30)
            future, others = gradient.masked_fill(~(later & asked), 0), gradient.masked_fill(asked, 0)
            sizes = {kind: (g.norm() / past).item() for kind, g in zip(leaks, (future, others), strict=True)}
            if not all(map(math.isfinite, sizes.values())):  # too large for a float: forwards alone decide
                return {}
            if not any(sizes.values()):
                if leaks["rows_gradient"]:  # then what seemed to be later tokens may be another row's
                    leaks["future_gradient"] = 0.0
                break
            leaks = sizes
        return leaks

    def memory(self) -> float:
        """Return how far a logit moves if another batch was evaluated before."""
        model = self.copy()
        self.logits(model, self.other)
        moved = (self.second - self.logits(model, self.idx)).abs().max()
        return (moved / self.second.std().clamp(min=1e-30)).item()


def measure(
    subject: Subject, changes: Callable[[Ask], Any], generator: torch.Generator
) -> tuple[dict[str, float], dict[str, Any], float]:
    """Return the leaks of a model in one mode by kind, how many cuts and rows were asked, and the largest
    change that fp64 proved to be rounding."""

    def forwards(subject: Subject) -> tuple[dict[str, float], dict[str, Any]]:
        leaks, asked = changes(subject.ask())
        for draw in range(1, DRAWS if NUMBERS in subject.varies else 1):
            more, _ = changes(subject.ask(draw))
            leaks = {kind: max(leak, more[kind]) for kind, leak in leaks.items()}
        return leaks, asked

    state = generator.get_state()
    leaks, asked = forwards(subject)
    measures = [(leaks, lambda precise: forwards(precise)[0])]
    if subject.training:
        measures.append((subject.gradients(generator), lambda precise: precise.gradients(generator)))
    rounding = 0.0
    for sizes, again in measures:
        if 0 < (size := max(sizes.values(), default=0.0)) < SMALL:
            generator.set_state(state)  # the same cuts again
            if max(again(subject.in_fp64()).values(), default=0.0) < FP64_ROUNDING:
                rounding, sizes = max(rounding, size), dict.fromkeys(sizes, 0.0)
        leaks |= sizes
    if not subject.training:
        leaks["memory"] = subject.memory()
    return leaks, asked, rounding


class KeepsFp64(TorchFunctionMode):
    """Keep fp64 where a model casts to fp32, as by ``x.float()``: rounding would look like a leak."""

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
# Random numbers and tokens


@contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """Context manager: restore the states of torch's, NumPy's and Python's random numbers at the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def seed_all(seed: int) -> None:
    """Seed the random numbers of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_states() -> tuple[object, ...]:
    """Return what changes if a random number is drawn."""
    of_gpu = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else b""
    of_torch = torch.get_rng_state().numpy().tobytes()
    return of_torch, of_gpu, random.getstate(), repr(np.random.get_state())


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
    """Return ``other`` with other tokens where it has those of ``idx``."""
    idx, other = idx.cpu(), other.cpu()
    shift = torch.randint(1, vocab_size, idx.shape, generator=generator)
    return torch.where(idx == other, (idx + shift) % vocab_size, other)


def perturbed(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters with noise of std 0.02 added to those that are trained. Without it, a gate or
    kernel that starts at 0 would hide the leak behind it."""
    return {
        name: p.detach() + 0.02 * torch.randn_like(p) if p.requires_grad else p.detach()
        for name, p in model.named_parameters()
    }


# ---------------------------------------------------------------------------------------------------
# What is said of a certificate


def is_free_of(kinds: tuple[str, ...], result: dict[str, Any]) -> bool | None:
    """Return whether all leaks of these kinds are 0; None if that cannot be said."""
    leaks = [result[mode].get(kind, 0) for mode in MODES if mode in result for kind in kinds]
    return False if any(leak > 0 for leak in leaks) else None if result["reason"] else True


def leak_metrics(certificate: dict[str, Any]) -> dict[str, float]:
    """Return a certificate's leaks as metrics: ``leak.future/train`` and so on."""
    return {
        f"leak.{kind}/{mode}": float(leak)  # in a file, infinity is a text
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
    """Return what was tested, such as ``tested: all 63 positions, 32 rows``; the lesser of two modes."""
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
