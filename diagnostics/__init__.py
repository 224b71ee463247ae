"""Looks at a model from outside, on the eager model, and leaves it as it was: what its norms do to
activations and gradients, and whether it keeps to the past. It knows a model by the names of its modules."""
