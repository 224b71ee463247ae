"""The code that a name stands for: part of a run's identity, so that an edited norm is a new run.

It is read, not imported, so it costs no torch.
"""

import ast
import importlib.util
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INSTALLED = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]


@cache
def source(target: str) -> str:
    """The code of ``package.module.Class`` and of all that it uses, without comments and docstrings; as it is
    when first asked for, which is when this process imports it.

    Followed are the names of its file, and imports from its own package and from files of no installed one.
    Torch's own classes give an empty text: their version is in environment.json.
    """
    module, _, name = target.rpartition(".")
    found: dict[tuple[str, str], str] = {}
    follow(module, name, target.split(".")[0], found)
    return "\n".join(text for _, text in sorted(found.items()))


def follow(module: str, name: str, package: str, found: dict[tuple[str, str], str]) -> None:
    """Add the definition of ``name`` and, through the names it uses, those of all that it depends on."""
    file = source_file(module, package)
    if file is None or (module, name) in found:
        return
    try:
        found[module, name], imports, used = definition(file.read_text(encoding="utf-8"), name)
    except (OSError, SyntaxError, ValueError):
        return  # importing it will say why
    for other in used:
        follow(module, other, package, found)
    for node in imports:
        origin = node.module or ""
        if node.level:
            parents = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
            origin = ".".join([*parents[: len(parents) - node.level + 1], *origin.split(".")]).strip(".")
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        follow(origin, original, package, found)


def definition(text: str, name: str) -> tuple[str, list[ast.ImportFrom], set[str]]:
    """Of a module's text: the code that defines ``name``, the imports among it, and the names it uses."""
    here = [node for node in statements(text) if name in bound(node)]
    code = "\n".join(map(ast.unparse, here))
    imports = [node for node in here if isinstance(node, ast.ImportFrom)]
    walked = (n for node in here if node not in imports for n in ast.walk(node))
    return code, imports, {n.id for n in walked if isinstance(n, ast.Name)} - {name}


@cache
def statements(text: str) -> list[ast.stmt]:
    """The statements of a module, without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree.body


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines, also inside of ``if`` and ``try``."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    else:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
            elif isinstance(inner, ast.ClassDef | ast.FunctionDef):
                yield inner.name


def source_file(module: str, package: str) -> Path | None:
    """The file of a module, found without importing it; None for torch's and other installed packages'."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top) if top not in ("", "torch") else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    candidates = [Path(spec.origin)] if not rest and spec.has_location and spec.origin else []
    for folder in spec.submodule_search_locations or ():
        candidates += [Path(folder, *rest[:-1], f"{rest[-1]}.py")] if rest else []
        candidates += [Path(folder, *rest, "__init__.py")]
    for file in candidates:
        if file.is_file() and (
            top == package or not any(file.is_relative_to(folder) for folder in INSTALLED)
        ):
            return file
    return None
