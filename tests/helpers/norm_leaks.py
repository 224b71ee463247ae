"""The norms that leak in training, and what their logits depend on: the future, other rows."""

SEES: dict[str, set[str]] = {
    "batchnorm": {"future", "rows"},
    "torch_batchnorm": {"future", "rows"},
    "batchnorm_position": {"rows"},
}
