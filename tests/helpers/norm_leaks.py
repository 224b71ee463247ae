"""Which norms leak in training, and what they leak."""

SEES: dict[str, set[str]] = {
    "batchnorm": {"future", "rows"},
    "torch_batchnorm": {"future", "rows"},
    "batchnorm_position": {"rows"},
}
