"""Check that a norm keeps the contract of docs/own-norm.md. Each line of the output is one promise of it.

    python -m scripts.check_norm norm=layernorm
    python -m scripts.check_norm --config-dir mine norm=l1 placement=peri model.qk_norm=l1

The other arguments are those of train.py; norm=l1,l2 checks several norms, one after the other. The model has
the sizes of the run, is untrained, and reads random tokens. Everything is computed on the CPU, which may take
a minute. The program ends with status 1 if a norm breaks a promise.
"""

import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cli import programs
from cli.compose import choices
from cli.errors import one_line_errors
from cli.schema import RunConfig
from data.errors import ConfigError
from model import GPT
from probe import causality as certificates
from probe.hooks import buffers_kept, forward_hooks
from training.build import build_model, norms_of
from training.loss import cross_entropy

VOCABULARY = 65  # number of tokens; any number will do
LOST_IN_BF16 = 2**-6  # largest error / largest output: four times what rounding of input and output can cause
OFFSET = 30.0  # mean of the features; bf16 rounds numbers of this size by up to 0.06


class Subject:
    """New models of a config, and random tokens for them."""

    def __init__(self, config: RunConfig) -> None:
        rows, T = config.train.batch_size // config.train.grad_accum, config.model.block_size
        generator = torch.Generator().manual_seed(config.seed)
        self.config, self.tokens = config, certificates.random_tokens(VOCABULARY, rows, T, generator)

    def model(self) -> GPT:
        return build_model(self.config, VOCABULARY)

    def norms(self, model: GPT) -> dict[str, nn.Module]:
        return norms_of(self.config, model)

    def loss(self, model: GPT) -> Tensor:
        """Return the mean cross-entropy, 0-d, always under the same random numbers."""
        torch.manual_seed(0)
        return cross_entropy(model, *self.tokens)


# A check raises AssertionError, saying what to do, if the norm breaks a promise; else it returns a remark.


def shape(s: Subject) -> str:
    """The norm returns one finite tensor of the input's shape and dtype for any number of rows and tokens."""

    def watched(forward: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
        def call(x: Tensor) -> object:
            before, y = x.clone(), forward(x)
            assert isinstance(y, Tensor), f"returns a {type(y).__name__}; return one tensor"
            assert y.shape == x.shape, f"returns {tuple(y.shape)} for {tuple(x.shape)}; keep the shape"
            assert y.dtype == x.dtype, f"returns {y.dtype} for {x.dtype}; end with .to(x.dtype)"
            assert y.isfinite().all(), "returns numbers that are not finite"
            assert torch.equal(before, x), "changes its input in place; compute a new tensor"
            return y

        return call

    idx = s.tokens[0]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = s.model().to(dtype)
        for norm in s.norms(model).values():
            norm.forward = watched(norm.forward)
        model(idx)
        model.eval()
        for tokens in (idx, idx[:, :1], idx[:1], idx[:1, :-1]):
            model(tokens)
    return ""


def gradient(s: Subject) -> str:
    """Every parameter of the norm has a finite gradient."""
    model = s.model().double()
    s.loss(model).backward()
    for name, norm in s.norms(model).items():
        for key, parameter in norm.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, f"{name}.{key} gets no gradient; use it in forward"
                assert parameter.grad.isfinite().all(), f"the gradient of {name}.{key} is not finite"
    return ""


def causality(s: Subject) -> str:
    """No logit depends on later tokens or on other rows."""
    answer = certificates.certificate(s.model(), VOCABULARY, s.tokens)
    leaks = False in (answer["causal"], answer["independent_rows"])
    assert not leaks, f"LEAKS: {certificates.describe_moves(answer)}"
    assert not answer["reason"], f"cannot be tested: {answer['reason']}"
    varies = " and ".join(answer["varies"])
    return f"the output varies with {varies}" if varies else certificates.extent(answer)


def repeatable(s: Subject) -> str:
    """The same parameters, buffers and seed give the same loss, and the norm does not seed torch."""
    model, losses = s.model(), set()
    for _ in range(3):
        with buffers_kept(model):
            losses.add(s.loss(model).item())
    assert len(losses) == 1, "the loss depends on earlier calls; keep state in buffers"
    expected = torch.rand(1, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    model.eval()(s.tokens[0])
    assert torch.initial_seed() == 1, "seeds torch's random numbers; leave that to the run"
    return "" if torch.equal(torch.rand(1), expected) else "draws random numbers in evaluation"


def state(s: Subject) -> str:
    """Parameters and buffers are the whole state: a new model with them trains and evaluates the same."""

    def train(model: GPT, steps: int) -> list[float]:
        losses, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = s.loss(model.train())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [*losses, s.loss(model.eval()).item()]

    model, resumed = s.model(), s.model()
    train(model, 3)
    resumed.load_state_dict(copy.deepcopy(model.state_dict()))
    assert train(model, 2) == train(resumed, 2), "a resumed run has other losses; keep all state in buffers"
    return ""


def bf16(s: Subject) -> str:
    """Statistics are taken in fp32: with a large mean, features in bf16 give the same output as in fp32."""

    def compare(norm: nn.Module, args: tuple[Tensor], _: Tensor) -> None:
        x = (torch.randn_like(args[0]) + OFFSET).bfloat16()
        exact = copy.deepcopy(norm).forward(x.float())
        with torch.autocast("cpu", torch.bfloat16):
            error = (norm.forward(x).float() - exact).abs().max()
        limit = LOST_IN_BF16 * exact.abs().max()
        assert error <= limit, f"is off by {error:.2g} in bf16; compute statistics of x.float()"

    model = s.model()
    with forward_hooks((norm, compare) for norm in s.norms(model).values()):
        model(s.tokens[0])
    return ""


def keeps_all(config: RunConfig) -> bool:
    """Print a line for each check. Return whether the norm passes all of them."""
    print(config.label(), flush=True)
    subject, passes = Subject(config), True
    try:
        subject.model()
    except ConfigError as error:
        print(f"builds       NO   {error}")
        return False
    for check in (shape, gradient, causality, repeatable, state, bf16):
        try:
            answer, remark = "yes", check(subject)
        except Exception as error:  # from a check, or from the user's norm
            is_ours = isinstance(error, AssertionError)
            answer, remark, passes = "NO", str(error) if is_ours else f"raises {error!r}", False
        print(f"{check.__name__:<12} {answer:<4} {remark}".rstrip(), flush=True)
    return passes


def main() -> None:
    _, arguments = programs.parser(__doc__, "scripts.check_norm").parse_known_args()
    with one_line_errors():
        kept = [keeps_all(config) for config in choices(arguments).values()]
        sys.exit(not all(kept))


if __name__ == "__main__":
    main()
