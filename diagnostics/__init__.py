"""A library that observes a model from outside, on the eager model, without changing it: statistics of
activations, gradients and weights, causality, what each block and norm does. It knows modules by their
names."""
