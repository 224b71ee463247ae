"""The cross-entropy of many logits is computed in parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from training import loss
from training.loss import cross_entropy

V, C = 7, 3


def loss_and_gradients(rows: int, ignored: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    head = torch.randn(V, C, generator=generator).requires_grad_()
    x = torch.randn(rows, 4, C, generator=generator).requires_grad_()
    targets = torch.randint(V, (rows, 4), generator=generator)
    targets[0, :ignored] = -100  # as in the certificate of a compiled loss
    value = cross_entropy(lambda idx: x @ head.T, targets, targets)
    with torch.inference_mode():
        torch.testing.assert_close(cross_entropy(lambda idx: x @ head.T, targets, targets), value)
    return [value.detach(), *torch.autograd.grad(value, [x, head])]


@given(rows=st.integers(1, 6), at_once=st.integers(1, 6 * 4 * V), ignored=st.integers(0, 3))
def test_parts_have_the_loss_and_the_gradients_of_all_logits_at_once(rows, at_once, ignored):
    whole = loss_and_gradients(rows, ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "AT_ONCE", at_once)
        parts = loss_and_gradients(rows, ignored)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_no_fp32_copy_of_many_logits_is_kept_for_the_backward(monkeypatch):
    def bytes_kept() -> int:
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            cross_entropy(lambda idx: logits, targets, targets)
        return sum(kept.values())

    logits = torch.randn(64, 4, V, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(V, (64, 4))
    assert bytes_kept() >= 4 * logits.numel()  # log-softmax in fp32
    monkeypatch.setattr(loss, "AT_ONCE", 16 * V)
    # targets, their number, and the logits themselves
    assert bytes_kept() <= 8 * targets.numel() + 8 + 2 * logits.numel()
