"""Properties of every norm in every placement; new files in conf/norm and conf/placement are included."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import GPT
from probe.causality import MODES, certificate
from tests.conftest import AROUND, NORMS, PLACEMENTS, configured, daily
from tests.helpers.model import SMALL_KEYS, random_tokens
from tests.helpers.norm_leaks import SEES
from training.build import bind, build_model

V, T, B = 11, 8, 4  # as in SMALL_KEYS
PAIRS = list(itertools.product(NORMS, PLACEMENTS))
FIRST = daily(PAIRS, lambda number: PAIRS[number] in AROUND, "long")


def made(norm: str, placement: str, *overrides: str) -> GPT:
    """Build the model of this pair; norm and placement are composed separately, as Hydra is slow."""
    halves = [f"placement.fraction={1 / 2}"] if placement == "mix" else []  # one of two blocks each
    config = configured(f"norm={norm}", *SMALL_KEYS, "model.bias=true", *overrides)
    other = configured(f"placement={placement}", *halves)
    return build_model(config.model_copy(update={"placement": other.placement}), V)


def batch() -> tuple[Tensor, Tensor]:
    tokens = random_tokens(B, T + 1)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def test_module_names_do_not_depend_on_norm_or_placement():
    names = {tuple(name for name, _ in made(*pair).named_modules()) for pair in AROUND}
    assert len(names) == 1
    assert {"embed", "final", "blocks.1.attn", "blocks.1.mlp.branch", "blocks.0.attn.post"} <= {*names.pop()}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's RMSNorm, in bf16
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("norm", "placement"), FIRST)
def test_logits_and_all_gradients_exist_and_are_finite(norm, placement, autocast):
    model = made(norm, placement)
    x, y = batch()
    for _ in range(2):  # running estimates are used from the second batch on
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(x)
        assert logits.shape == (B, T, V)
        assert logits.dtype == (torch.bfloat16 if autocast else torch.float32)
        loss_of(logits, y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("norm", "placement"),
    daily(PAIRS, lambda number: number % 8 == 0, lambda number: "slow" if number % 2 else "long"),
)
def test_a_norm_leaks_in_training_what_it_is_known_to_leak_and_nothing_else(norm, placement):
    model = made(norm, placement)
    kind = bind("norm", configured(f"norm={norm}").norm).func
    has_norm = any(isinstance(module, kind) for module in model.modules())
    measured = certificate(model, V, (random_tokens(8, T), random_tokens(8, T, seed=1)))
    assert (measured["reason"], measured["varies"]) == (None, [])
    for mode, what in itertools.product(MODES, ("future", "rows")):
        leaks = mode == "train" and what in SEES.get(norm, set()) and has_norm
        effect, gradient = measured[mode][what], measured[mode].get(f"{what}_gradient")
        assert (effect > 1e-3) == leaks, mode
        assert gradient is None or (gradient > 0) == leaks  # asked in training only
        assert leaks or effect == 0


def outcomes(model: nn.Module, net: nn.Module, x: Tensor) -> list[Tensor]:
    """Return output, all gradients and buffers of ``net``, a view of ``model``, and restore the buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    y = net(x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype))
    results = [y, *(p.grad for p in model.parameters()), *(buffer.clone() for buffer in model.buffers())]
    model.load_state_dict(buffers, strict=False)
    return results


@pytest.mark.long  # compiling is slow: make test-long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("norm", NORMS)
def test_compiled_to_code_it_is_the_same_function(norm):
    torch._dynamo.reset()
    model, (x, _) = made(norm, "pre").double(), batch()  # in fp32 rounding alone moves a gradient by 1e-5
    for a, b in zip(outcomes(model, model, x), outcomes(model, torch.compile(model), x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
