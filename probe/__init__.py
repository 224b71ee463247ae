"""Observe a model without changing it: statistics of activations, gradients and weights; causality; the
effect of each block and norm. The model must be the eager one. Its modules are found by name."""
