"""From names in the config to the classes they name: a norm or placement is ``_target_`` and its options.

``hydra.utils.instantiate`` is not used: it takes 7.6 ms a call, and a checkpoint must not choose what to run.
"""

import importlib
import inspect
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from cli.schema import Component, RunConfig
from system.errors import ConfigError
from system.validate import expectation, invalid_value

if TYPE_CHECKING:
    from model import GPT
    from model.attention import Attend
    from model.head import Head

FINITE = ConfigDict(allow_inf_nan=False)
LIMITS = {"eps": (1e-30, math.inf), "momentum": (0, 1)}  # of what has these names everywhere; in fp32
WHERE = ("device", "dtype")  # arguments that a run gives, to all of its model at once
# The modules of torch whose classes a checkpoint may name.
OF_TORCH = {f"torch.nn.modules.{name}" for name in ("normalization", "batchnorm", "instancenorm")}
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
    if packages is not None:
        of_torch = component.target.startswith("torch.") and component.target != "torch.nn.Identity"
        if of_torch and target.__module__ not in OF_TORCH:
            raise ConfigError(
                f"{group}: the checkpoint names {component.target}, which is no norm of torch's; "
                "use another one"
            )
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name not in WHERE
    }
    try:
        hints = get_type_hints(target.__init__)
    except NameError:  # names that its module imports for type checkers only
        hints = {}
    options: dict[str, Any] = {}
    for key, value in component.options.items():
        if key in WHERE:
            raise ConfigError(f"{group}.{key}: device and precision are those of the whole run; leave it out")
        if key not in parameters:
            has = ", ".join(parameters) or "none"
            raise ConfigError(f"{group}.{key}: {component.target} has no such argument; it has {has}")
        try:
            options[key] = TypeAdapter(hints.get(key, Any), config=FINITE).validate_python(value)
        except PydanticSchemaGenerationError:  # an annotation that is no plain data: as it comes
            options[key] = value
        except ValidationError as error:
            raise ConfigError(invalid_value(f"{group}.{key}", value, expectation(error))) from None
        least, most = LIMITS.get(key, (-math.inf, math.inf))
        if isinstance(value := options[key], int | float) and not least <= value <= most:
            raise ConfigError(invalid_value(f"{group}.{key}", value, f"a value from {least} to {most}"))
    return partial(target, **options)


def is_component(group: str, target: type) -> bool:
    from torch import nn

    from model.placements import Placement

    return issubclass(target, Placement if group == "placement" else nn.Module)


def resolved_auto(config: RunConfig, packages: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return what ``auto`` and null became, by key: settings that depend on the norm and the placement.
    Raises ConfigError as ``bind`` does."""
    import torch

    from model.init import INITS

    options, init = config.model, INITS[config.model.init]
    norm = bind("norm", config.norm, packages)
    placement = bind("placement", config.placement, packages)(config.model.n_layer)
    found: dict[str, Any] = {}
    if options.final_norm == "auto":
        found["model.final_norm"] = "same" if placement.final_norm else "none"
    if options.embedding_scale == "auto":
        found["model.embedding_scale"] = getattr(norm.func, "embedding_scale", False)
    if options.depth_scaled_init == "auto":
        found["model.depth_scaled_init"] = init.is_depth_scaled(placement)
    widths = {"model.qk_norm": options.n_embd // options.n_head}
    for key, component in config.components().items():
        with torch.random.fork_rng(devices=[]):
            instance = (
                placement
                if key == "placement"
                else bind(key, component, packages)(widths.get(key, options.n_embd))
            )
        for option, value in component.options.items():
            own = getattr(instance, option, None) if value is None else None
            if isinstance(own, int | float | torch.Tensor) and torch.as_tensor(own).numel() == 1:
                found[f"{key}.{option}"] = round(torch.as_tensor(own).detach().item(), 6)
    return found


def describe_choices(resolved: dict[str, Any]) -> str:
    """Return the result of ``resolved_auto`` as it would be typed."""
    return " ".join(f"{key}={str(value).lower()}" for key, value in resolved.items())


def build_model(
    config: RunConfig,
    vocab_size: int,
    packages: tuple[str, ...] | None = None,
    attend: "type[Attend] | None" = None,
    head: "type[Head] | None" = None,
) -> "GPT":
    """The model of a config, with the initial weights of its seed. Raises ConfigError as ``bind`` does."""
    from torch import nn

    from model import GPT
    from model.attention import Attend, CausalSelfAttention
    from model.embeddings import Embedding, LearnedPositions, Rotary
    from model.head import Head
    from model.init import INITS
    from model.mlp import MLPS
    from model.scales import LearnedScale

    options = config.model
    bound = {key: bind(key, component, packages) for key, component in config.components().items()}
    try:
        auto = resolved_auto(config, packages)
        own_final: dict[str, Any] = {"same": bound["norm"], "none": nn.Identity}
        final_norm = bound.get("model.final_norm") or own_final[auto["model.final_norm"]]
        is_rotary = options.positions == "rotary"
        has_scale = auto.get("model.embedding_scale", options.embedding_scale)
        depth_scaled = auto.get("model.depth_scaled_init", options.depth_scaled_init)
        init = INITS[options.init].scaled(options.init_scale)
        return GPT(
            vocab_size=vocab_size,
            **options.model_dump(
                include={"block_size", "n_layer", "n_head", "n_embd", "tie", "dropout", "bias"}
            ),
            norm=bound["norm"],
            placement=bound["placement"],
            final_norm=final_norm,
            embedding=partial(
                Embedding,
                positions=nn.Identity if is_rotary else LearnedPositions,
                scale=LearnedScale if has_scale else nn.Identity,
                norm=bound["model.embedding_norm"],
            ),
            attention=partial(
                CausalSelfAttention,
                qk_norm=bound["model.qk_norm"],
                rotate=Rotary if is_rotary else nn.Identity,
                attend=attend or Attend,
            ),
            mlp=MLPS[options.activation],
            head=head or Head,
            init=replace(init, depth_scaled=depth_scaled),
            seed=config.seed,
        )
    except TypeError as error:
        raise ConfigError(f"{config.chosen()}: {error}") from None


def initial_model(
    config: RunConfig,
    vocab_size: int,
    attend: "type[Attend] | None" = None,
    head: "type[Head] | None" = None,
) -> "GPT":
    """Return the model that a run starts from. Raises as ``build_model`` and interop/pretrained.py."""
    from training.state import initialise_from

    model = build_model(config, vocab_size, attend=attend, head=head)
    if config.init_from:
        initialise_from(model, config.init_from, vocab_size)
    return model
