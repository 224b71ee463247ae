"""From names in the config to the classes they name: a norm or placement is ``_target_`` and keyword
arguments.

``hydra.utils.instantiate`` is not used: it takes 7.6 ms a call, and a checkpoint's config must not choose
what to run.
"""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from training.config import Component, ConfigError, RunConfig, expectation

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
    except (ImportError, AttributeError, SyntaxError) as error:
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
    hints = get_type_hints(target.__init__)
    options = {}
    for key, value in component.options.items():
        if key not in parameters:
            has = ", ".join(parameters) or "none"
            raise ConfigError(f"{group}.{key}: {component.target} has no such argument; it has {has}")
        try:
            options[key] = TypeAdapter(hints.get(key, Any)).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"{group}.{key}: {expectation(error)}, not {value!r}") from None
    return partial(target, **options)


def is_component(group: str, target: type) -> bool:
    from torch import nn

    from model.placements import Placement

    return issubclass(target, Placement if group == "placement" else nn.Module)


def build_model(config: RunConfig, vocab_size: int, packages: tuple[str, ...] | None = None) -> "GPT":
    """The model a config describes, with the initial weights of its seed. Raises ConfigError as ``bind``
    does."""
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
    except (TypeError, ValueError) as error:
        raise ConfigError(f"norm={config.norm.name} placement={config.placement.name}: {error}") from None


def source(target: str) -> str:
    """The code of a class and of everything in its file that it uses, without comments and docstrings.

    It is read, not imported, so it costs no torch; it goes into a run's identity, so that an edited norm is a
    new run. Empty for what is not in a file of Python or not defined there, as torch.nn.LayerNorm: its
    package is not ours.
    """
    module_name, _, class_name = target.rpartition(".")
    file = source_file(module_name)
    if file is None:
        return ""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return ""  # importing it will say why
    definitions: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            definitions |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            definitions[node.target.id] = node
    used, waiting = set(), [class_name]
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in used:
            used.add(name)
            waiting += [node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
    return "\n".join(ast.unparse(without_docstrings(definitions[name])) for name in sorted(used))


def without_docstrings(tree: ast.stmt) -> ast.stmt:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def source_file(module_name: str) -> Path | None:
    """The file of a module, found without importing it or its packages."""
    top, *rest = module_name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or top == "torch":
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for folder in spec.submodule_search_locations or ():
        for file in (Path(folder, *rest).with_suffix(".py"), Path(folder, *rest, "__init__.py")):
            if file.is_file():
                return file
    return None
