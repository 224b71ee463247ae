"""Check that a norm keeps the contract of docs/own-norm.md, one promise a line.

    python -m scripts.check_norm norm=layernorm
    python -m scripts.check_norm --config-dir mine norm=l1 placement=peri model.qk_norm=l1

The other arguments are those of train.py; several norms, norm=l1,l2, are checked one after the other, each
in a process of its own, which may take a minute. The model has the sizes of the run and is not trained;
its tokens are random; all is computed on the CPU. The program ends with status 1 if a norm breaks a promise.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from cli.compose import choices
from cli.errors import CONF, one_line_errors
from cli.schema import RunConfig

VOCABULARY = 65  # number of tokens; any number will do
LIMIT = 60  # seconds that the check of a norm may take
KEPT = 100  # exit status of a norm's process that passes; a norm may end it with 0
LOST_IN_BF16 = 2**-6  # of the largest output: four times what rounding input and output can change
OFFSET = 30.0  # mean of the features; bf16 rounds numbers of this size by up to 0.06


class Subject:
    """The model and its norms, and random tokens for it."""

    def __init__(self, config: RunConfig) -> None:
        import torch

        from probe.causality import random_tokens
        from training.build import build_model, norms_of

        self.new_model: Callable[[], Any] = lambda: build_model(config, VOCABULARY)
        self.norms: Callable[[Any], dict[str, Any]] = lambda model: norms_of(config, model)
        rows, T = config.train.batch_size // config.train.grad_accum, config.model.block_size
        self.tokens = random_tokens(VOCABULARY, rows, T, torch.Generator().manual_seed(config.seed))

    def loss(self, model: Any) -> Any:
        """Return the mean cross-entropy, 0-d, always under the same random numbers."""
        import torch

        from training.loss import cross_entropy

        torch.manual_seed(0)
        return cross_entropy(model, *self.tokens)


def shape(s: Subject) -> str:
    """One finite tensor of the input's shape and dtype, whatever the number of rows and tokens."""
    import torch

    from probe.hooks import forward_hooks

    def check(norm: Any, args: Any, y: Any) -> None:
        (x,) = args
        assert isinstance(y, torch.Tensor), f"returns a {type(y).__name__}; return one tensor"
        assert y.shape == x.shape, f"returns {tuple(y.shape)} for {tuple(x.shape)}; keep the shape"
        assert y.dtype == x.dtype, f"returns {y.dtype} for {x.dtype}; end with .to(x.dtype)"
        assert y.isfinite().all(), "returns numbers that are not finite"

    def remember(norm: Any, args: Any) -> None:
        norm.input_before = args[0].clone()

    def compare(norm: Any, args: Any, y: Any) -> None:
        assert torch.equal(norm.input_before, args[0]), "changes its input in place; compute a new tensor"

    idx = s.tokens[0]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = s.new_model().to(dtype)
        norms = s.norms(model).values()
        for norm in norms:
            norm.register_forward_pre_hook(remember)
        with forward_hooks((norm, hook) for norm in norms for hook in (check, compare)):
            for mode in (True, False):
                model.train(mode)(idx)
            model(idx[:, :1])
            model(idx[:1])
            model(idx[:1, :-1])
    return ""


def gradient(s: Subject) -> str:
    """Every parameter of the norm has a finite gradient."""
    model = s.new_model().double()
    s.loss(model).backward()
    for name, norm in s.norms(model).items():
        for key, parameter in norm.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, f"{name}.{key} gets no gradient; use it in forward"
                assert parameter.grad.isfinite().all(), f"the gradient of {name}.{key} is not finite"
    return ""


def causality(s: Subject) -> str:
    """No logit depends on later tokens or on other rows."""
    from probe.causality import certificate, describe_moves, extent

    answer = certificate(s.new_model(), VOCABULARY, s.tokens)
    assert False not in (answer["causal"], answer["independent_rows"]), f"LEAKS: {describe_moves(answer)}"
    assert not answer["reason"], f"cannot be tested: {answer['reason']}"
    varies = " and ".join(answer["varies"])
    return f"the output varies with {varies}" if varies else extent(answer)


def repeatable(s: Subject) -> str:
    """The same parameters, buffers and seed give the same loss; the run keeps its random numbers."""
    import torch

    from probe.hooks import buffers_kept

    model = s.new_model()
    losses = []
    for _ in range(3):
        with buffers_kept(model):
            losses.append(s.loss(model).item())
    assert len(set(losses)) == 1, "the loss depends on earlier calls; keep state in buffers"
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    model.eval()(s.tokens[0])
    assert torch.initial_seed() == 1, "seeds torch's random numbers; leave that to the run"
    return "draws random numbers in evaluation" if not torch.equal(torch.rand(1), expected) else ""


def state(s: Subject) -> str:
    """Parameters and buffers are the whole state: a new model that gets them trains and evaluates alike."""
    import torch

    def train(model: Any, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            model.zero_grad()
            loss = s.loss(model.train())
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            losses.append(loss.item())
        return [*losses, s.loss(model.eval()).item()]

    model, resumed = s.new_model(), s.new_model()
    train(model, 3)
    resumed.load_state_dict(copy.deepcopy(model.state_dict()))
    assert train(model, 2) == train(resumed, 2), "a resumed run has other losses; keep all state in buffers"
    return ""


def bf16(s: Subject) -> str:
    """Statistics are taken in fp32: features in bf16 with a large mean give what the same in fp32 give."""
    import torch

    for name, norm in s.norms(s.new_model()).items():
        features = next(
            (p.shape[-1] for p in norm.parameters() if p.dim()), s.new_model().embed.tokens.weight.shape[1]
        )
        x = (torch.randn(8, 16, features, generator=torch.Generator().manual_seed(0)) + OFFSET).bfloat16()
        exact = copy.deepcopy(norm)(x.float())
        with torch.autocast("cpu", torch.bfloat16):
            error = (norm(x).float() - exact).abs().max()
        limit = LOST_IN_BF16 * exact.abs().max()
        assert error <= limit, f"{name} in bf16 is off by {error:.2g}; compute statistics of x.float()"
    return ""


CHECKS = {check.__name__: check for check in (shape, gradient, causality, repeatable, state, bf16)}


def check_one(config: RunConfig) -> bool:
    """Print a line for each check. Return whether the norm passes all of them."""
    print(config.label(), flush=True)
    subject = Subject(config)
    subject.new_model()  # raises if a setting is wrong
    passes = True
    for name, check in CHECKS.items():
        try:
            kept, remark = True, check(subject)
        except AssertionError as error:
            kept, remark = False, str(error)
        except (Exception, SystemExit) as error:  # whatever a norm raises that the user wrote
            print(f"{name:<12} NO   raises {type(error).__name__}: {error}; nothing else was tested")
            return False
        print(f"{name:<12} {'yes' if kept else 'NO':<4} {remark}".rstrip(), flush=True)
        passes &= kept
    return passes


def check_apart(config: RunConfig) -> bool:
    """Check one norm in a process of its own: it may exit, or take forever."""
    settings = json.dumps(config.model_dump(by_alias=True))
    paths = [str(CONF.parent), os.environ.get("PYTHONPATH")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "scripts.check_norm", "--one"]
    try:
        status = subprocess.run(command, input=settings, text=True, timeout=LIMIT, env=environ).returncode
    except subprocess.TimeoutExpired:
        print(f"NO: it takes longer than {LIMIT} s")
        return False
    if status not in (KEPT, 1):
        print(f"NO: it ends the process, with status {status}")
    return status == KEPT


def main() -> None:
    if sys.argv[1:] == ["--one"]:
        passes = check_one(RunConfig.model_validate_json(sys.stdin.read()))
        sys.exit(KEPT if passes else 1)
    if {"--help", "-h"} & {*sys.argv}:
        print(__doc__)
        return
    configs = choices(sys.argv[1:]).values()
    kept = [check_apart(config) for config in configs]  # all are asked
    sys.exit(not all(kept))


if __name__ == "__main__":
    with one_line_errors():
        main()
