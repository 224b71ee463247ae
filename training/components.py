"""From names in the config to the classes they name: a norm or placement is ``_target_`` and its options.

``hydra.utils.instantiate`` is not used: it takes 7.6 ms a call, and a checkpoint must not choose what to run.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from training.checking import ConfigError, expectation
from training.checkpoint import Checkpoint, CheckpointError
from training.config import Component, RunConfig

if TYPE_CHECKING:
    from model import GPT

OURS = ("model", "torch.nn")  # what a checkpoint may name without being trusted


def allowed(target: str, packages: tuple[str, ...]) -> bool:
    return any(target.startswith(package + ".") for package in packages)


def bind(group: str, component: Component, packages: tuple[str, ...] | None = None) -> partial[Any]:
    """The class that ``component`` names, bound to its options; only from ``packages`` where these are given.

    Raises:
        ConfigError: no such class, not an allowed one, or an option that its signature does not have or
            accept.
    """
    module_name, _, class_name = component.target.rpartition(".")
    if packages is not None and not allowed(component.target, packages):
        package = component.target.split(".")[0]
        raise ConfigError(
            f"{group}: the checkpoint names {component.target}, which is not of this project; "
            f"if you trust that code, add trust={package}"
        )
    try:
        target = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{group}._target_: {component.target} cannot be imported ({error}); check its name"
        ) from None
    if not (inspect.isclass(target) and is_component(group, target)):
        raise ConfigError(f"{group}._target_: {component.target} is not a {group} class; name one that is")
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    try:
        hints = get_type_hints(target.__init__)
    except NameError:  # names that its module imports for type checkers only
        hints = {}
    options = {}
    for key, value in component.options.items():
        if key not in parameters:
            has = ", ".join(parameters) or "none"
            raise ConfigError(f"{group}.{key}: {component.target} has no such argument; it has {has}")
        try:
            options[key] = TypeAdapter(hints.get(key, Any)).validate_python(value)
        except PydanticSchemaGenerationError:  # an annotation that is no plain data: as it comes
            options[key] = value
        except ValidationError as error:
            raise ConfigError(f"{group}.{key}: {expectation(error)}, not {value!r}") from None
    return partial(target, **options)


def is_component(group: str, target: type) -> bool:
    from torch import nn

    from model.placements import Placement

    return issubclass(target, Placement if group == "placement" else nn.Module)


def build_model(config: RunConfig, vocab_size: int, packages: tuple[str, ...] | None = None) -> "GPT":
    """The model of a config, with the initial weights of its seed. Raises ConfigError as ``bind`` does."""
    import torch.nn.functional as F

    from model import GPT

    norm = bind("norm", config.norm, packages)
    placement = bind("placement", config.placement, packages)
    sizes = config.model.model_dump(exclude={"activation"})
    activations: dict[str, Callable[..., Any]] = {
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
    }
    try:
        return GPT(
            vocab_size=vocab_size,
            norm=norm,
            placement=placement(),
            activation=activations[config.model.activation],
            seed=config.seed,
            **sizes,
        )
    except TypeError as error:
        raise ConfigError(f"norm={config.norm.name} placement={config.placement.name}: {error}") from None


def load_model(loaded: Checkpoint, vocab_size: int, packages: tuple[str, ...]) -> "GPT":
    """The model that a checkpoint holds. Raises ConfigError as ``bind`` does, and CheckpointError where its
    tensors are not those of its config."""
    from training.state import restore_model

    sizes = loaded.meta.config.model
    least = sizes.n_embd * (vocab_size + sizes.block_size + 12 * sizes.n_layer * sizes.n_embd)
    held = sum(tensor.numel() for tensor in loaded.tensors.values())
    if least > held:  # before memory is asked for
        raise CheckpointError(
            f"{loaded.path}: its config is of a model of {least:,} parameters, but it holds "
            f"{held:,} numbers; use another one"
        )
    model = build_model(loaded.meta.config, vocab_size, packages)
    restore_model(model, loaded)
    return model
