"""Check that a model with norms and a placement of the user's can be trained, measured and saved."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from diagnostics.contract import BrokenContractError, title
from model import GPT


def check_branches(model: GPT) -> None:
    """Check that the placement wired each branch that it was given. Raises BrokenContractError."""
    seen: set[int] = set()
    for i, block in enumerate(model.blocks):
        for site in ("attn", "mlp"):
            module = getattr(block, site)
            parameters = {id(p) for p in module.parameters()} if isinstance(module, nn.Module) else set()
            if not parameters - seen:
                raise BrokenContractError(
                    f"blocks.{i}.{site} has no parameters of its own; a placement returns a new module that "
                    "contains the branch that it is given"
                )
            seen |= parameters


def check_tensors(modules: Mapping[str, nn.Module]) -> None:
    """Check that the parameters and buffers of ``modules`` can be trained and saved, and that each has
    memory of its own. Raises BrokenContractError."""
    owners: dict[int, str] = {}  # by where a tensor lies in memory
    for name, module in modules.items():
        for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
            problem, path = wrong_tensor(tensor), f"{name}.{key}"
            if not problem and tensor.nbytes:
                owner = owners.setdefault(tensor.data_ptr(), path)
                if owner != path:  # the same parameter, too: it may outlive the model, in a sweep's process
                    problem = f"lies in the memory of {owner}; create each by itself, in __init__"
            if problem:
                raise BrokenContractError(f"{title(name, module)}: its {key} {problem}")


def check_gradients(model: nn.Module) -> None:
    """Check that a backward reached every parameter. Raises BrokenContractError."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise BrokenContractError(
                f"{name} gets no gradient; a norm or a placement has to use its parameters, and to pass the "
                "gradient of its output on to its input (requires_grad_(False) keeps a parameter constant)"
            )


def wrong_tensor(tensor: Tensor) -> str | None:
    """Return why a parameter or buffer cannot be trained or saved; None if it can."""
    if is_lazy(tensor):
        return "has no shape yet; create it in __init__ from the number of features"
    is_number = tensor.is_floating_point() and tensor.element_size() > 1  # not of 8 bits
    if isinstance(tensor, nn.Parameter) and tensor.requires_grad and not is_number:
        return f"is of {tensor.dtype}, which the optimizers cannot update; use floating-point numbers"
    if tensor.is_complex() or (tensor.is_floating_point() and not is_number):
        return (
            f"is of {tensor.dtype}, which cannot be saved or checked; use floating-point numbers or integers"
        )
    if tensor.is_floating_point() and not tensor.isfinite().all():
        return "is not finite, as all in a checkpoint has to be; use finite numbers, such as -1e9 for -inf"
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        return "shares its memory, such as after expand or a slice; add .clone()"
    return None
