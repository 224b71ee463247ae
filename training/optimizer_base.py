"""The base of our optimizers: torch's, without importing its compiler."""

from inspect import unwrap

import torch


class Uncompiled(torch.optim.Optimizer):
    """torch's methods without their ``torch._dynamo`` wrappers, the first of which to be called imports the
    compiler, a third of the time that an uncompiled run takes to start."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
