"""Check what docs/own-norm.md asks of a norm, one question at a time, on a model.GPT that has it.

Each check takes a ``Subject`` and returns a remark, "" if there is nothing to say; it raises
``BrokenContractError`` where the norm does not keep the contract.
"""

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from diagnostics import causality, contract
from diagnostics.contract import BrokenContractError, described
from diagnostics.norm_subject import Subject, evaluate, slope, train
from diagnostics.repeatable import remove_dropout

BF16 = partial(torch.autocast, "cpu", torch.bfloat16)
SAME = 1e-4  # relative; two computations of the same numbers in fp32
SAME_SLOPE = 0.01  # of the gradient's norm; differences are that exact where a norm computes in fp32
LOST_IN_BF16 = 2**-6  # of the largest output: four times what rounding input and output can change
OFFSET = 30.0  # mean of the features; bf16 rounds numbers of this size by up to 0.06


def outcome(check: Callable[[Subject], str], s: Subject) -> tuple[bool, str]:
    """Return whether ``s`` passes a check, and the remark or what is wrong."""
    try:
        return True, check(s)
    except BrokenContractError as error:
        return False, str(error)
    except Exception as error:  # whatever a norm raises that the user wrote
        return False, f"raises {described(error)}{contract.line_of(error)}"


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
    """The output has the dtype of the input, in fp32, fp64 and bf16, in training and in evaluation."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = s.new_model().to(dtype)
        for name, norm in s.norms(model).items():
            norm.register_forward_hook(partial(require_dtype, contract.title(name, norm)))
        model(s.tokens[0])
        model.eval()(s.tokens[0])
    return ""


def require_dtype(title: str, norm: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
    if output.dtype != args[0].dtype:
        raise BrokenContractError(
            f"{title} returns {output.dtype} for {args[0].dtype}; end with .to(x.dtype)"
        )


def check_gradient(s: Subject) -> str:
    """Every parameter of the norm has a finite gradient. The remark says whether the gradient of the loss is
    not its derivative, as where statistics are detached: measured in fp64 along a random direction, by
    differences of the loss. If these depend on their step, it names torch.autograd.gradcheck."""
    model = s.new_model().double()
    loss = s.loss(model)
    if not loss.isfinite():
        raise BrokenContractError("the loss is not finite")
    loss.backward()
    for name, norm in s.norms(model).items():
        for key, parameter in norm.named_parameters():
            if not parameter.requires_grad:
                continue
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
    if abs(slope(s, direction, step=1e-6) - difference) > SAME_SLOPE * size:
        return "not compared with differences, which depend on their step, as after a median; use gradcheck"
    return f"not the derivative of the loss: along a random direction {along:.4g} instead of {difference:.4g}"


def check_causality(s: Subject) -> str:
    """No logit depends on later tokens or on other rows: the certificate. A norm that draws random numbers or
    counts its calls is no leak; the remark names what varies."""
    answer = causality.certificate(s.new_model(), s.vocab_size, s.tokens)
    if False in (answer["causal"], answer["independent_rows"]):
        raise BrokenContractError(f"LEAKS: {causality.describe_moves(answer)}")
    if answer["reason"]:
        raise BrokenContractError(f"cannot be tested: {answer['reason']}")
    varies = " and ".join(answer["varies"])
    return f"the output varies with {varies}" if varies else causality.extent(answer)


def check_repeatability(s: Subject) -> str:
    """The same parameters, buffers and seed give the same loss, and nothing but buffers changes."""
    model = s.new_model()

    def train() -> Tensor:
        return s.loss(model.train()).detach()

    def disturb() -> None:
        with torch.no_grad():
            model.eval()(s.tokens[1])

    contract.check_repeatable(model, s.norms(model), train, partial(evaluate, s, model), disturb)
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
        if not torch.allclose(losses[0], losses[1], rtol=0, atol=0, equal_nan=True):
            raise BrokenContractError(
                f"the loss in {what} is {losses[1][-1]:.6f} after a resume instead of {losses[0][-1]:.6f}; "
                "keep all state in buffers"
            )
    return ""


def check_compile(s: Subject) -> str:
    """torch.compile gives the same loss, gradients and buffers, without dropout."""
    torch.compiler.reset()
    results = []
    for loss_of in (s.loss, torch.compile(s.loss, dynamic=False)):
        model = s.new_model()
        remove_dropout(model)
        loss = loss_of(model)
        loss.backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        buffers = [buffer.flatten() for norm in s.norms(model).values() for buffer in norm.buffers()]
        # apart, as a large buffer would hide a gradient; a buffer may be NaN
        state = torch.cat([torch.ones(1), *buffers]).nan_to_num()
        results.append((torch.cat([loss.detach()[None], *grads]), state))
    losses = []
    for seed in (0, 1):
        model = s.new_model()
        remove_dropout(model)
        losses.append(s.loss(model, seed))
    if not torch.equal(*losses):
        return "not compared with eager, as the norm draws random numbers"
    for what, eager, fast in zip(("loss and gradients", "buffers"), *results, strict=True):
        if not (fast - eager).norm() <= SAME * eager.norm():
            difference = ((eager - fast).norm() / eager.norm()).item()
            raise BrokenContractError(
                f"the compiled {what} differ by {difference:.2g} of their size; replace a buffer that "
                "forward changes and uses (self.n = self.n + 1), as a change in place may compile wrongly"
            )
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
    model = s.new_model()  # without hooks
    with torch.no_grad():
        for name, moved in causality.perturbed(model).items():  # a weight of 0 would hide everything
            model.get_parameter(name).copy_(moved)
        for name, shape in shapes.items():
            norm, x = s.norms(model)[name], (torch.randn(shape) + OFFSET).bfloat16()
            torch.manual_seed(0)
            exact = copy.deepcopy(norm)(x.float())
            torch.manual_seed(0)
            with BF16():
                error = (norm(x).float() - exact).abs().max()
            if not error <= LOST_IN_BF16 * exact.abs().max():
                raise BrokenContractError(
                    f"{contract.title(name, norm)}: an output in bf16 is off by {error:.2g}, of "
                    f"{exact.abs().max():.2g} at most; compute statistics of x.float()"
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
