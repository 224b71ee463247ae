"""The base class of our optimizers: torch's Optimizer, without importing torch's compiler.

An optimizer of training/optimizer.py has, besides ``step``:
    found_inf    0-d tensor or None, set before each step; if it is 1 (on CUDA), ``step`` must change nothing
    state_keys   names of the state that it keeps per parameter: tensors of the parameter's shape, and the
                 number "step"; a restored checkpoint is checked and sharded by these names. There has to be
                 some state: a run does not resume from a checkpoint without any.
"""

from inspect import unwrap
from typing import ClassVar

import torch
from torch import Tensor


class BaseOptimizer(torch.optim.Optimizer):
    """torch's methods without their ``torch._dynamo`` wrappers: the first call of a wrapper imports the
    compiler, which takes a third of the time that an uncompiled run needs to start."""

    found_inf: Tensor | None = None
    state_keys: ClassVar[tuple[str, ...]]
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
