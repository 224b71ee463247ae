"""Build the model of a config, and try it: one forward and backward before anything is written to disk.

A config gives each norm and placement as a class, ``_target_``, and its options.
``hydra.utils.instantiate`` is not used: it takes 7.6 ms a call, and would call whatever a checkpoint names.
"""

import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn.modules import batchnorm, instancenorm, normalization

from cli.errors import expectation, invalid_value
from cli.schema import Component, RunConfig
from data.errors import ConfigError, UserError, described
from model import GPT
from model.attention import Attend, CausalSelfAttention
from model.embeddings import POSITIONS, Embedding
from model.layers import INITS, Head
from model.mlp import MLPS
from model.placements import LearnedScale, Placement
from probe.hooks import buffers_kept, forward_hooks
from training.device import Compute, check_fits, is_out_of_memory
from training.identity import is_installed

FINITE = ConfigDict(allow_inf_nan=False)
# argument -> its range, in every class
LIMITS = {"eps": (1e-30, math.inf), "momentum": (0, 1)}
# The classes that an untrusted checkpoint may name: those of model/, and torch's norms.
OWN_PACKAGES = ("model",)
TORCH_NAMES = (*normalization.__all__, *batchnorm.__all__, *instancenorm.__all__, "Identity")
TORCH_NORMS = {f"torch.nn.{name}" for name in TORCH_NAMES}
# the folders of code that is not the user's
PACKAGES = ("model", "data", "probe", "interop", "cli", "training")
KNOWN = [Path(__file__).parents[1] / package for package in PACKAGES]


# ---------------------------------------------------------------------------------------------------
# Classes


def bind(group: str, component: Component, packages: tuple[str, ...] | None = None) -> partial[Any]:
    """Return the class that ``component`` names, bound to its options.

    Args:
        group: the config key whose value is the component.
        packages: the packages whose classes a checkpoint's component may name; None allows all.

    Raises:
        ConfigError: the class is missing or not allowed, or it has no such option, or an option is invalid.
    """
    target = import_class(group, component.target, packages)
    spec = inspect.getfullargspec(target)
    arguments = [*spec.args[1:], *spec.kwonlyargs]
    try:
        hints = get_type_hints(target.__init__)
    except Exception:  # a hint that cannot be evaluated, such as a name imported for type checkers only
        hints = {}
    options = {}
    for key, value in component.options.items():
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
    except Exception as error:  # the user's file may raise anything
        why = f"{path} cannot be imported ({described(error)}{line_of(error)})"
        raise ConfigError(f"{group}._target_: {why}; correct the name, the file or PYTHONPATH") from error
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
    """Return, by key, the value that ``auto`` or null stands for. Some of these values depend on the norm and
    the placement. Raises ConfigError as ``bind`` does."""
    settings, init = config.model, INITS[config.model.init]
    sizes = {"placement": settings.n_layer, "model.qk_norm": settings.n_embd // settings.n_head}
    with torch.random.fork_rng(devices=[]):  # an instance of each norm and of the placement
        parts = {
            key: bind(key, component, packages)(sizes.get(key, settings.n_embd))
            for key, component in config.components().items()
        }
    automatic = {
        "final_norm": "same" if parts["placement"].final_norm else "none",
        "embedding_scale": getattr(parts["norm"], "embedding_scale", False),
        "init_scale": rounded(init.scale_for(settings.n_embd)),
        "depth_scaled_init": init.is_depth_scaled(parts["placement"]),
    }
    resolved = {f"model.{k}": value for k, value in automatic.items() if getattr(settings, k) == "auto"}
    for key, component in config.components().items():
        for option in (option for option, value in component.options.items() if value is None):
            value = getattr(parts[key], option, None)  # the value the class chose, if it is one number
            if isinstance(value, int | float | torch.Tensor) and torch.as_tensor(value).numel() == 1:
                resolved[f"{key}.{option}"] = rounded(torch.as_tensor(value).item())
    return resolved


def rounded(number: float) -> float:
    """Round a float to six digits, for records that people read; return integers and booleans unchanged."""
    return float(f"{number:.6g}") if isinstance(number, float) else number


def build_model(
    config: RunConfig,
    vocab_size: int,
    packages: tuple[str, ...] | None = None,
    attend: type[Attend] = Attend,
    head: type[Head] = Head,
) -> GPT:
    """Return a config's model with the initial weights of its seed. Raises ConfigError as ``bind`` does, or
    if a norm or the placement cannot be created with these sizes and options."""
    classes = {key: bind(key, component, packages) for key, component in config.components().items()}
    with explained(config):
        automatic = {k.removeprefix("model."): v for k, v in resolved_auto(config, packages).items()}
        settings: Any = config.model.model_copy(update=automatic)  # without "auto"
        classes |= {"same": classes["norm"], "none": partial(nn.Identity)}
        positions, rotate = POSITIONS[settings.positions]
        init = INITS[settings.init].scaled(settings.init_scale)
        return GPT(
            vocab_size=vocab_size,
            **settings.model_dump(
                include={"block_size", "n_layer", "n_head", "n_embd", "tie", "dropout", "bias"}
            ),
            norm=classes["norm"],
            placement=classes["placement"],
            final_norm=classes.get("model.final_norm") or classes[settings.final_norm],
            embedding=partial(
                Embedding,
                positions=positions,
                scale=LearnedScale if settings.embedding_scale else nn.Identity,
                norm=classes["model.embedding_norm"],
            ),
            attention=partial(
                CausalSelfAttention, qk_norm=classes["model.qk_norm"], rotate=rotate, attend=attend
            ),
            mlp=MLPS[settings.activation],
            head=head,
            init=replace(init, depth_scaled=settings.depth_scaled_init),
            seed=config.seed,
        )


def initial_model(
    config: RunConfig, vocab_size: int, attend: type[Attend] = Attend, head: type[Head] = Head
) -> GPT:
    """Return the model that a run starts from. Raises as ``build_model`` and ``initialise_from`` do."""
    model = build_model(config, vocab_size, attend=attend, head=head)
    if config.init_from:
        initialise_from(model, config.init_from, vocab_size)
    return model


def initialise_from(model: GPT, name: str, vocab_size: int) -> None:
    """Copy the weights that ``init_from`` names into a model of the same architecture: all matrices, and the
    norm tensors that have the same name and shape. Print one line. Raises ConfigError."""
    from interop.pretrained import pretrained  # here: few runs need it

    state = model.state_dict()  # shares its memory with the model
    weights = pretrained(name).tensors(model.block_size, vocab_size)
    copied = {key for key, tensor in weights.items() if key in state and state[key].shape == tensor.shape}
    with torch.no_grad():
        for key in copied:
            if not weights[key].isfinite().all():
                raise ConfigError(f"init_from: {name}: {key} is not finite; use other weights")
            state[key].copy_(weights[key])
    parts = {"left out, as this model has no tensor of that name and shape": weights.keys() - copied}
    parts |= {"not copied, so they keep their initial values": dict(model.named_parameters()).keys() - copied}
    notes = [
        f"; {what}: {', '.join(sorted(names)[:2])}{', …' * (len(names) > 2)} ({len(names)})"
        for what, names in parts.items()
        if names
    ]
    print(f"initialised from {name}{''.join(notes)}")


# ---------------------------------------------------------------------------------------------------
# One try


def build_and_try(
    config: RunConfig, vocab_size: int, compute: Compute, loss_of: Callable[[GPT], Tensor]
) -> GPT:
    """Build a config's model on its device, and run one forward and backward of ``loss_of``.

    Raises:
        ConfigError: the model cannot be built or does not fit into memory, its norm or placement raises an
            error or loses the gradient, or the loss is not one number.
    """
    check_fits(config, vocab_size, compute.device)
    attend, head = compute.attend(config.model.dropout), compute.head(vocab_size)
    model = initial_model(config, vocab_size, attend, head).to(compute.device)
    with explained(config), forward_hooks((norm, same_shape) for norm in norms_of(config, model).values()):
        try_backward(model, partial(loss_of, model))
    return model


def same_shape(norm: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
    """A hook: raise ConfigError unless a norm's output is a tensor of the same shape as its input."""
    what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if what != tuple(args[0].shape):
        raise ConfigError(
            f"{type(norm).__name__}: returns {what} for {tuple(args[0].shape)}; a norm keeps the shape: "
            "docs/own-norm.md"
        )


def try_backward(model: nn.Module, loss_of: Callable[[], Tensor]) -> None:
    """Run one forward and backward, which leaves ``model`` as it was. Raises ConfigError if a parameter gets
    no gradient."""
    with buffers_kept(model):
        try:
            loss_of().backward()
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and parameter.grad is None:
                    raise ConfigError(
                        f"{name}: gets no gradient; a norm or a placement has to use its parameters and to "
                        "pass the gradient on (requires_grad_(False) keeps a parameter constant)"
                    )
        finally:
            model.zero_grad(set_to_none=True)


@contextmanager
def explained(config: RunConfig) -> Iterator[None]:
    """Context manager: turn an error that a norm or a placement raises into a ConfigError. Other errors are
    bugs in our own code, and pass through."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line, remedy = line_of(error), "choose another norm, model size or train.batch_size"
        if is_out_of_memory(error) or not (line or isinstance(error, ValueError | RuntimeError | TypeError)):
            raise
        if line:
            remedy = "correct this code"
        elif "does not have a deterministic implementation" in str(error):  # of some GPU operations
            remedy = "choose another norm, or give deterministic=false"
        raise ConfigError(f"{config.label()}: {described(error)}{line}; {remedy}") from error


def line_of(error: BaseException) -> str:
    """Return where in the user's own code an error was raised, such as ", at mynorms.py:12". Return "" if
    the traceback has no line of the user's code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not (is_installed(file) or any(map(file.is_relative_to, KNOWN))):
            return f", at {file.name}:{frame.lineno}"
    return ""
