"""Build the model of a config, which gives a norm or placement as a class, ``_target_``, and its options.

``hydra.utils.instantiate`` is not used: it takes 7.6 ms a call, and would call whatever a checkpoint names.
"""

import importlib
import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from torch import nn
from torch.nn.modules import batchnorm, instancenorm, normalization

from cli.schema import Component, RunConfig
from diagnostics.contract import is_signal, line_of
from model import GPT
from model.attention import Attend, CausalSelfAttention
from model.embeddings import POSITIONS, Embedding
from model.head import Head
from model.init import INITS
from model.mlp import MLPS
from model.placements import Placement
from model.scales import LearnedScale
from system.errors import ConfigError, described
from system.validate import expectation, invalid_value
from training.state import initialise_from

FINITE = ConfigDict(allow_inf_nan=False)
# argument -> its range, in every class
LIMITS = {"eps": (1e-30, math.inf), "momentum": (0, 1)}
RUN_ARGUMENTS = ("device", "dtype")  # set by the run, not by a config
# The classes that an untrusted checkpoint may name: those of our packages, and torch's norms.
OWN_PACKAGES = ("model",)
TORCH_NAMES = (*normalization.__all__, *batchnorm.__all__, *instancenorm.__all__, "Identity")
TORCH_NORMS = {f"torch.nn.{name}" for name in TORCH_NAMES}


def bind(group: str, component: Component, packages: tuple[str, ...] | None = None) -> partial[Any]:
    """Return the class that ``component`` names, bound to its options.

    Args:
        group: the config key whose value is the component.
        packages: the packages whose classes a checkpoint's component may name; None allows all.

    Raises:
        ConfigError: the class is missing or not allowed, or an option is invalid or is no argument of it.
    """
    target = import_class(group, component.target, packages)
    spec = inspect.getfullargspec(target)
    arguments = [name for name in (*spec.args[1:], *spec.kwonlyargs) if name not in RUN_ARGUMENTS]
    try:
        hints = get_type_hints(target.__init__)
    except Exception:  # a hint that cannot be evaluated, such as a name imported for type checkers only
        hints = {}
    options = {}
    for key, value in component.options.items():
        if key in RUN_ARGUMENTS:
            raise ConfigError(f"{group}.{key}: device and precision are those of the whole run; omit {key}")
        if key not in arguments and (not spec.varkw or target is nn.Identity):  # Identity ignores all
            names = ", ".join(arguments) or "none"
            raise ConfigError(f"{group}.{key}: {component.target} has no such argument; it has {names}")
        options[key] = valid_option(group, key, value, hints.get(key, Any))
    return partial(target, **options)


def import_class(group: str, path: str, packages: tuple[str, ...] | None) -> Any:
    """Import the class of a norm or placement. Raises ConfigError as ``bind`` does."""
    module_name, _, class_name = path.rpartition(".")
    package = path.partition(".")[0]
    is_known = path in TORCH_NORMS or any(path.startswith(f"{name}.") for name in packages or ())
    if packages is not None and not is_known:
        raise ConfigError(
            f"{group}: the checkpoint names {path}, which is not part of this project; if you trust it, "
            f"add trust={package}"
        )
    try:
        target = getattr(importlib.import_module(module_name), class_name, None)
        if target is None:
            raise ImportError(f"{module_name} has no {class_name}")
    except (ImportError, SyntaxError) as error:
        raise ConfigError(
            f"{group}._target_: {path} cannot be imported ({error}); check its name, and PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        if is_signal(error):
            raise
        why = f"{module_name} raises {described(error)}{line_of(error)}"
        raise ConfigError(f"{group}._target_: {why}, when it is imported; correct it") from error
    base = Placement if group == "placement" else nn.Module
    if not (inspect.isclass(target) and issubclass(target, base)):
        raise ConfigError(f"{group}._target_: {path} is not a subclass of {base.__name__}; name one that is")
    return target


def valid_option(group: str, key: str, value: Any, hint: Any) -> Any:
    """Return an option converted to its type hint. Raises ConfigError if it is invalid or out of range."""
    try:
        value = TypeAdapter(hint, config=FINITE).validate_python(value)
    except PydanticUserError:  # the hint is not plain data: pass the value unchanged
        pass
    except ValidationError as error:
        raise ConfigError(invalid_value(f"{group}.{key}", value, expectation(error))) from None
    low, high = LIMITS.get(key, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        limits = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ConfigError(invalid_value(f"{group}.{key}", value, f"it should be {limits}"))
    return value


def instances(config: RunConfig, packages: tuple[str, ...] | None) -> Iterator[tuple[str, Any]]:
    """Yield each norm and placement of a config by key, instantiated. Raises ConfigError as ``bind`` does, or
    if a class raises one of the errors below when it is called."""
    sizes = config.model
    size_by_key = {"placement": sizes.n_layer, "model.qk_norm": sizes.n_embd // sizes.n_head}
    for key, component in config.components().items():
        create = bind(key, component, packages)
        try:
            part = create(size_by_key.get(key, sizes.n_embd))
        # errors of the class's own code. TypeError, ValueError and RuntimeError may also be due to an option
        # or a size, and are explained by build_model, rehearsal.build_and_try and load_model
        except (LookupError, AssertionError, AttributeError, ArithmeticError, NameError, SystemExit) as error:
            if is_signal(error):
                raise
            why = f"{component.target} raises {described(error)}"
            raise ConfigError(f"{key}: {why}, when it is created; correct it") from error
        if isinstance(part, nn.Module) and "_parameters" not in vars(part):
            raise ConfigError(f"{key}: {component.target} is no module yet; begin with super().__init__()")
        yield key, part


def norms_of(config: RunConfig, model: GPT) -> dict[str, nn.Module]:
    """Return the norms of a config's model, by name, without norms inside of norms."""
    components = {key: part for key, part in config.components().items() if key != "placement"}
    classes = {import_class(key, part.target, None) for key, part in components.items()} - {nn.Identity}
    norms: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if type(module) in classes and not any(name.startswith(f"{outer}.") for outer in norms):
            norms[name] = module
    return norms


def resolved_auto(config: RunConfig, packages: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return the value that each setting ``auto`` or null stands for, by key; some depend on the norm and the
    placement. Raises ConfigError as ``bind`` does."""
    settings = config.model
    with torch.random.fork_rng(devices=[]):
        parts = dict(instances(config, packages))
    resolved: dict[str, Any] = {}
    if settings.final_norm == "auto":
        resolved["model.final_norm"] = "same" if parts["placement"].final_norm else "none"
    if settings.embedding_scale == "auto":
        resolved["model.embedding_scale"] = getattr(parts["norm"], "embedding_scale", False)
    if settings.init_scale == "auto":
        resolved["model.init_scale"] = rounded(INITS[settings.init].scale_for(settings.n_embd))
    if settings.depth_scaled_init == "auto":
        resolved["model.depth_scaled_init"] = INITS[settings.init].is_depth_scaled(parts["placement"])
    for key, component in config.components().items():
        for option in (option for option, value in component.options.items() if value is None):
            value = getattr(parts[key], option, None)  # the value the class chose, if it is one number
            if isinstance(value, int | float | torch.Tensor) and torch.as_tensor(value).numel() == 1:
                number = torch.as_tensor(value).detach().item()
                resolved[f"{key}.{option}"] = rounded(number) if isinstance(number, float) else number
    return resolved


def rounded(number: float) -> float:
    """Return the number with six digits, for records that people read."""
    return float(f"{number:.6g}")


def build_model(
    config: RunConfig,
    vocab_size: int,
    packages: tuple[str, ...] | None = None,
    attend: type[Attend] = Attend,
    head: type[Head] = Head,
) -> GPT:
    """Return a config's model with the initial weights of its seed. Raises ConfigError as ``bind`` does."""
    settings = config.model
    classes = {key: bind(key, component, packages) for key, component in config.components().items()}
    try:
        resolved = resolved_auto(config, packages)
        norm_by_keyword: dict[str, Any] = {"same": classes["norm"], "none": nn.Identity}
        positions, rotate = POSITIONS[settings.positions]
        has_embedding_scale = resolved.get("model.embedding_scale", settings.embedding_scale)
        init_scale = resolved.get("model.init_scale", settings.init_scale)
        depth_scaled = resolved.get("model.depth_scaled_init", settings.depth_scaled_init)
        return GPT(
            vocab_size=vocab_size,
            **settings.model_dump(
                include={"block_size", "n_layer", "n_head", "n_embd", "tie", "dropout", "bias"}
            ),
            norm=classes["norm"],
            placement=classes["placement"],
            final_norm=classes.get("model.final_norm") or norm_by_keyword[resolved["model.final_norm"]],
            embedding=partial(
                Embedding,
                positions=positions,
                scale=LearnedScale if has_embedding_scale else nn.Identity,
                norm=classes["model.embedding_norm"],
            ),
            attention=partial(
                CausalSelfAttention,
                qk_norm=classes["model.qk_norm"],
                rotate=rotate,
                attend=attend,
            ),
            mlp=MLPS[settings.activation],
            head=head,
            init=replace(INITS[settings.init].scaled(init_scale), depth_scaled=depth_scaled),
            seed=config.seed,
        )
    except TypeError as error:
        raise ConfigError(f"{config.label()}: {described(error)}{line_of(error)}") from error


def initial_model(
    config: RunConfig, vocab_size: int, attend: type[Attend] = Attend, head: type[Head] = Head
) -> GPT:
    """Return the model that a run starts from. Raises as ``build_model`` and interop/pretrained.py do."""
    model = build_model(config, vocab_size, attend=attend, head=head)
    if config.init_from:
        initialise_from(model, config.init_from, vocab_size)
    return model
