"""torch's optimizers without its compiler."""

from inspect import unwrap

import torch


class Uncompiled(torch.optim.Optimizer):
    """torch's own methods without the wrappers that keep its compiler out of them: the first of these to be
    called imports the compiler, which is a third of the seconds that an uncompiled run takes to start."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
