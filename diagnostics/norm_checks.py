"""Check what docs/own-norm.md asks of a norm, one question at a time, on a model.GPT that has it.

Each check takes a ``Subject`` and returns a remark, "" if there is nothing to say; it raises
``BrokenContractError`` where the norm does not keep the contract.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagnostics import causality, contract
from diagnostics.contract import BrokenContractError
from model import GPT

BF16 = partial(torch.autocast, "cpu", torch.bfloat16)
SAME = 1e-4  # relative; two computations of the same numbers in fp32
SAME_SLOPE = 0.01  # of the gradient's norm; differences are that exact where a norm computes in fp32
LOST_IN_BF16 = 2**-6  # of the largest output: four times what rounding input and output can change
OFFSET = 30.0  # mean of the features; bf16 rounds numbers of this size by up to 0.06


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        new_model: returns the model with its initial weights, on the CPU, always the same.
        norms: returns the norms of such a model, by name.
        vocab_size: number of tokens V.
        tokens: two batches of random tokens, each (B, T), int64.
    """

    new_model: Callable[[], GPT]
    norms: Callable[[GPT], Mapping[str, nn.Module]]
    vocab_size: int
    tokens: tuple[Tensor, Tensor]

    def loss(self, model: nn.Module) -> Tensor:
        """Return the mean cross-entropy, 0-d, under the same random numbers each time."""
        torch.manual_seed(0)
        idx, targets = self.tokens
        logits = model(idx).flatten(0, 1)
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


def outcome(check: Callable[[Subject], str], s: Subject) -> tuple[bool, str]:
    """Return whether ``s`` passes a check, and the remark or what is wrong."""
    try:
        return True, check(s)
    except BrokenContractError as error:
        return False, str(error)
    except Exception as error:  # whatever a norm raises that the user wrote
        return False, f"raises {contract.described(error)}"


def check_shape(s: Subject) -> str:
    """One tensor of the input's shape, in training, in evaluation, and on a single token, as in sampling;
    input and parameters stay as they are."""
    model, idx = s.new_model(), s.tokens[0]
    with contract.watched(s.norms(model)):
        model(idx)
        model.eval()
        model(idx)
        model(idx[:1, :1])
    return ""


def check_dtype(s: Subject) -> str:
    """The output has the dtype of the input, in fp32, fp64 and bf16."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = s.new_model().to(dtype)
        for name, norm in s.norms(model).items():
            norm.register_forward_hook(partial(require_dtype, contract.title(name, norm)))
        model(s.tokens[0])
    return ""


def require_dtype(title: str, norm: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
    if output.dtype != args[0].dtype:
        raise BrokenContractError(
            f"{title} returns {output.dtype} for {args[0].dtype}; end with .to(x.dtype)"
        )


def check_gradient(s: Subject) -> str:
    """Every parameter of the norm has a finite gradient. The remark says whether the gradient of the loss is
    not its derivative, as where statistics are detached: measured in fp64 along a random direction."""
    model = s.new_model().double()
    s.loss(model).backward()
    for name, norm in s.norms(model).items():
        for key, parameter in norm.named_parameters():
            where = f"{contract.title(name, norm)}, parameter {key}"
            if parameter.grad is None:
                raise BrokenContractError(f"{where}: there is no gradient; use it in forward")
            if not parameter.grad.isfinite().all():
                raise BrokenContractError(f"{where}: the gradient is not finite")
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.manual_seed(0)
    direction = {name: torch.randn_like(grad) for name, grad in gradient.items()}
    along = sum(float((grad * direction[name]).sum()) for name, grad in gradient.items())
    size = math.sqrt(sum(float(grad.square().sum()) for grad in gradient.values()))  # the std of ``along``
    difference = slope(s, direction)
    if abs(along - difference) <= SAME_SLOPE * size:
        return ""
    return f"not the derivative of the loss: along a random direction {along:.4g} instead of {difference:.4g}"


def slope(s: Subject, direction: Mapping[str, Tensor], step: float = 1e-5) -> float:
    """Return the loss's central difference along ``direction``, by parameter name, in fp64."""
    losses = []
    for sign in (1, -1):
        model = s.new_model().double()
        with torch.no_grad():
            for name, part in direction.items():
                model.get_parameter(name).add_(part, alpha=sign * step)
            losses.append(s.loss(model).item())
    return (losses[0] - losses[1]) / (2 * step)


def check_causality(s: Subject) -> str:
    """No logit depends on later tokens or on other rows: the certificate. A norm that draws random numbers or
    counts its calls is no leak; the remark names what varies."""
    answer = causality.certificate(s.new_model(), s.vocab_size, s.tokens)
    if answer["causal"] is None or answer["independent_rows"] is None:
        raise BrokenContractError(f"cannot be tested: {answer['reason']}")
    if not (answer["causal"] and answer["independent_rows"]):
        raise BrokenContractError(causality.describe_leaks(answer, "it").removeprefix("WARNING: it "))
    varies = " and ".join(answer["varies"])
    return f"the output varies with {varies}" if varies else causality.extent(answer)


def check_repeatability(s: Subject) -> str:
    """The same parameters, buffers and seed give the same loss, and nothing but buffers changes."""
    model = s.new_model()
    state = copy.deepcopy(model.state_dict())

    def loss() -> Tensor:
        model.load_state_dict(state, strict=False)
        return s.loss(model).detach()

    contract.check_repeatable(model, loss)
    return ""


def check_state(s: Subject) -> str:
    """Parameters and buffers are the whole state: a new model that is given them has the same losses, in
    evaluation and in the next two steps of training."""
    model = s.new_model()
    train(s, model, steps=3)
    tensors = {n: t.detach().clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    resumed = s.new_model()
    places = dict(resumed.named_parameters()) | dict(resumed.named_buffers())
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (tensors, places)]
    if changed := dict(shapes[0].items() ^ shapes[1].items()):
        raise BrokenContractError(f"training adds, removes or reshapes {min(changed)}; create it in __init__")
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(tensors[name])
    for what, losses_of in (("evaluation", evaluate), ("training", train)):
        losses = [losses_of(s, each) for each in (model, resumed)]
        if not torch.equal(*losses):
            raise BrokenContractError(
                f"the loss in {what} is {losses[1][-1]:.6f} after a resume instead of {losses[0][-1]:.6f}; "
                "keep all state in buffers"
            )
    return ""


def train(s: Subject, model: nn.Module, steps: int = 2) -> Tensor:
    """Train by gradient descent on one batch. Return the loss of each step, (steps,)."""
    model.train()
    losses = []
    for _ in range(steps):
        model.zero_grad()
        losses.append(s.loss(model))
        losses[-1].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
    return torch.stack(losses).detach()


@torch.no_grad()
def evaluate(s: Subject, model: nn.Module) -> Tensor:
    """Return the loss in evaluation, (1,)."""
    return s.loss(model.eval())[None]


def check_compile(s: Subject) -> str:
    """torch.compile gives the same loss and gradients."""
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        model = s.new_model()
        loss_of = torch.compile(s.loss, dynamic=False) if compiled else s.loss
        loss = loss_of(model)
        loss.backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        results.append(torch.cat([loss.detach()[None], *grads]))
    eager, fast = results
    difference = ((eager - fast).norm() / eager.norm()).item()
    if not difference <= SAME:
        raise BrokenContractError(f"the compiled loss and gradients differ by {difference:.2g} of their size")
    return ""


def check_bf16(s: Subject) -> str:
    """Under autocast the loss is finite, and the norm takes its statistics in fp32: features in bf16 with a
    large mean give what the same features in fp32 give."""
    model = s.new_model()
    shapes: dict[str, torch.Size] = {}
    for name, norm in s.norms(model).items():
        norm.register_forward_pre_hook(lambda _, args, name=name: shapes.update({name: args[0].shape}))
    with BF16():
        loss = s.loss(model)
    if not loss.isfinite():
        raise BrokenContractError("the loss under autocast is not finite")
    norms = s.norms(s.new_model())  # without hooks
    for name, shape in shapes.items():
        x = (torch.randn(shape) + OFFSET).bfloat16()
        exact = copy.deepcopy(norms[name])(x.float())
        with BF16():
            difference = (norms[name](x).float() - exact).abs().max() / exact.abs().max()
        if not difference <= LOST_IN_BF16:
            raise BrokenContractError(
                f"{contract.title(name, norms[name])} loses precision: its output in bf16 is off by "
                f"{difference:.2g} of the largest number; compute statistics of x.float()"
            )
    return ""


CHECKS: dict[str, Callable[[Subject], str]] = {
    "shape": check_shape,
    "dtype": check_dtype,
    "gradient": check_gradient,
    "causality": check_causality,
    "repeatability": check_repeatability,
    "state": check_state,
    "compile": check_compile,
    "bf16": check_bf16,
}
