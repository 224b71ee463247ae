"""The name of a run: ``<norm>-<placement>-s<seed>-<hash>``.

The hash covers the settings, the seed, the precision, the tokens, and the source of the norm's and the
placement's class. This source includes the functions, classes and constants that the class uses, unless they
are in an installed package. The hash leaves out what does not change the result (evaluation, statistics,
logging), and what changes only its rounding (device, threads, compile, ranks). So the same command finds the
same folder. The source is collected name by name: a hash of whole files would rename every run when a norm is
added to model/norms.py. Torch is not imported here.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from data.files import digest

# keys of train.* that change how a run is watched, or the last digits of its numbers
NOT_IN_IDENTITY = {"eval_every", "eval_windows", "checkpoint_every", "log_every", "threads"}


def identity(config: RunConfig, precision: str, fingerprint: str) -> dict[str, Any]:
    """Return what is hashed. ``precision`` is fp32 or bf16, not auto; ``fingerprint`` is the hash of the
    tokens."""
    settings = config.model_dump(
        by_alias=True, include={"seed", "model", "norm", "placement", "optim", "schedule"}
    )
    if weights := weights_digest(config):
        settings["init_from"] = weights
    return settings | {
        "train": config.train.model_dump(exclude=NOT_IN_IDENTITY),
        "precision": precision,
        "tokens": fingerprint,
        "source": {key: source(component.target) for key, component in config.components().items()},
    }


def weights_digest(config: RunConfig) -> str | None:
    """Return the digest of the pretrained weights that a run starts from."""
    if not config.init_from:
        return None
    from interop.pretrained import pretrained  # here: few runs need it

    return pretrained(config.init_from).digest


def folder_of(config: RunConfig, precision: str, fingerprint: str) -> Path:
    """Return the folder of this run, which may not exist yet."""
    short = digest(identity(config, precision, fingerprint))[:8]
    return Path(config.runs_dir) / f"{config.norm.name}-{config.placement.name}-s{config.seed}-{short}"


def group_name(config: RunConfig, precision: str, fingerprint: str) -> str:
    """Return the name shared by all runs that differ only in their seed."""
    short = digest(identity(config, precision, fingerprint) | {"seed": None})[:8]
    return f"{config.norm.name}-{config.placement.name}-{short}"


# ---------------------------------------------------------------------------------------------------
# The source of a class


def is_installed(path: Path) -> bool:
    """Return whether a path belongs to Python's own library or to an installed package."""
    packages = {"site-packages", "dist-packages"} & {*path.parts}
    return bool(packages) or path.is_relative_to(sysconfig.get_path("stdlib"))


@cache
def source(target: str) -> str:
    """Return the code of ``package.module.Class``, and of the functions, classes and constants that it names,
    in its file or in others. Installed packages, comments and docstrings are left out. The code is parsed,
    not imported. For a class of torch, return "": environment.json has torch's version."""
    module, _, name = target.rpartition(".")
    found: dict[tuple[str, str], str] = {}
    follow(module, name, found)
    return "\n".join(text for _, text in sorted(found.items()))


def follow(module: str, name: str, found: dict[tuple[str, str], str]) -> None:
    """Add the definition of ``name`` in ``module``, and all that it names, to ``found``."""
    statements = parsed(module)
    nodes = [node for node in statements if name in bound(node)]
    if not nodes or (module, name) in found:
        return
    found[module, name] = "\n".join(map(ast.unparse, nodes))
    imports = imported(module, statements)
    if name in imports:
        follow(*imports[name], found)
    for inner in (inner for node in nodes for inner in ast.walk(node)):
        if isinstance(inner, ast.Name):
            follow(module, inner.id, found)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):  # a module's attribute
            parent, original = imports.get(inner.value.id, ("", ""))
            follow(".".join(filter(None, (parent, original))), inner.attr, found)


def bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    inner = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in inner if isinstance(each.ctx, ast.Store)}


def imported(module: str, statements: list[ast.stmt]) -> dict[str, tuple[str, str]]:
    """Return what each imported name stands for: (module, name in it), or ("", module) for a module."""
    names: dict[str, tuple[str, str]] = {}
    for node in statements:
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: ("", each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []  # relative: from . or ..
            origin = ".".join([*parents, *filter(None, [node.module])])
            names |= {each.asname or each.name: (origin, each.name) for each in node.names}
    return names


@cache
def parsed(module: str) -> list[ast.stmt]:
    """Return a module's statements without docstrings. Return [] for an installed package, and for a module
    that cannot be read: importing it will raise the error."""
    for file in candidates(module):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return tree.body
    return []


def candidates(module: str) -> Iterator[Path]:
    """Yield the files that may hold a module, in the order of sys.path, outside of installed packages."""
    for folder in (Path(entry or ".").absolute() for entry in sys.path if module):
        if not is_installed(folder):
            path = folder.joinpath(*module.split("."))
            yield from (path.with_suffix(".py"), path / "__init__.py")
