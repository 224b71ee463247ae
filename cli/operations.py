"""Count the weights of a model's matrices, and the floating-point operations of training."""


def matrix_weights(n_layer: int, n_embd: int, vocab_size: int) -> int:
    """Return about how many weights the matrices have; a model has at least so many parameters."""
    return 12 * n_layer * n_embd**2 + vocab_size * n_embd


def per_token(n_layer: int, n_embd: int, block_size: int, vocab_size: int) -> int:
    """Return the approximate number of floating-point operations of a training step per token. A forward
    takes two per weight plus those of attention's products (Kaplan et al. 2020, arXiv 2001.08361, section
    2.1); a backward takes twice as many as the forward."""
    weights = matrix_weights(n_layer, n_embd, vocab_size)
    return 3 * (2 * weights + 4 * n_layer * n_embd * block_size)
