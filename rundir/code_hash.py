"""Extract the source code of a class, a part of a run's identity: a run with an edited norm is a new run.

The code is parsed, not imported, so torch is not needed.
"""

import ast
import importlib.util
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DEFINITION = ast.ClassDef | ast.FunctionDef
INSTALLED = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]


@cache
def source(target: str) -> str:
    """Return the code of ``package.module.Class`` and of everything it uses, without comments and docstrings.
    The result is cached: the process keeps the code that it imported, even if the file is edited later.

    Names are followed in the same file, in the same package, and in files outside of installed packages. A
    class of torch gives "", as environment.json records torch's version.
    """
    module, _, name = target.rpartition(".")
    definitions: dict[tuple[str, str], str] = {}
    follow(module, name, target.split(".")[0], definitions)
    return "\n".join(text for _, text in sorted(definitions.items()))


def follow(module: str, name: str, package: str, definitions: dict[tuple[str, str], str]) -> None:
    """Add the definition of ``name``, and of everything that it uses, to ``definitions``."""
    file = source_file(module, package)
    if file is None or (module, name) in definitions:
        return
    nodes = statements(file)
    mine = [node for node in nodes if name in bound(node)]
    if mine and not any(isinstance(node, ast.Import | ast.ImportFrom) for node in mine):
        mine = [node for node in nodes if node in mine or name in changed(node)]
    definitions[module, name] = "\n".join(map(ast.unparse, mine))
    all_imports = [statement for node in nodes for statement in imports(node)]
    if not mine:
        follow_star(name, module, file, package, definitions)
    for node in mine:
        if isinstance(node, DEFINITION) and node.name != name:
            follow(module, node.name, package, definitions)
        for statement in imports(node):
            if isinstance(statement, ast.ImportFrom) and name in map(bound_by, statement.names):
                origin, _, original = imported(statement, name, module, file).rpartition(".")
                follow(origin, original, package, definitions)
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for used, *attributes in chains(node):
            if used != name:
                follow(module, used, package, definitions)
            for statement in all_imports:
                if used in map(bound_by, statement.names):
                    dotted = ".".join([imported(statement, used, module, file), *attributes])
                    follow_attribute(dotted, package, definitions)
            follow_star(used, module, file, package, definitions)


def follow_star(
    name: str, module: str, file: Path, package: str, definitions: dict[tuple[str, str], str]
) -> None:
    """Add the definition of ``name`` from the modules of which ``module`` imports ``*``."""
    for origin in starred(module, file):
        if is_in(name, origin, package):
            follow(origin, name, package, definitions)


def starred(module: str, file: Path) -> list[str]:
    """Return the modules of which ``module`` imports ``*``."""
    stars = [s for node in statements(file) for s in imports(node) if "*" in map(bound_by, s.names)]
    return [imported(statement, "*", module, file).removesuffix(".*") for statement in stars]


def is_in(name: str, module: str, package: str, depth: int = 8) -> bool:
    """Return whether a module defines a name, or imports it by ``import *``."""
    file = source_file(module, package)
    if file is None or depth == 0:
        return False
    origins = starred(module, file)
    return name in names_of(file) or any(is_in(name, origin, package, depth - 1) for origin in origins)


def follow_attribute(dotted: str, package: str, definitions: dict[tuple[str, str], str]) -> None:
    """Add what ``dotted`` names, such as ``package.module.function``, if it is in a module of the user's; the
    whole module if it names a module."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        if file := source_file(module, package):
            for name in parts[count : count + 1] or names_of(file):
                follow(module, name, package, definitions)
            return


@cache  # called for each name that is followed
def imports(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a statement, also inside ``if``, ``try`` and functions."""
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)]


def imported(node: ast.Import | ast.ImportFrom, name: str, module: str, file: Path) -> str:
    """Return what an import of ``module`` binds to ``name``, such as ``package.module.function``."""
    alias = next(alias for alias in node.names if bound_by(alias) == name)
    if isinstance(node, ast.Import):
        return alias.name if alias.asname else name
    origin = node.module or ""
    if node.level:  # relative: from . or ..
        parents = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
        origin = ".".join([*parents[: len(parents) - node.level + 1], *origin.split(".")]).strip(".")
    return f"{origin}.{alias.name}"


def chains(node: ast.AST) -> Iterator[list[str]]:
    """Yield each name that code uses, with the attributes that it takes of it: ``["a", "b", "c"]`` of
    ``a.b.c``."""
    inner, attributes = node, list[str]()
    while isinstance(inner, ast.Attribute):
        attributes.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield [inner.id, *attributes]
    else:
        for child in ast.iter_child_nodes(inner):
            yield from chains(child)


def statements(file: Path) -> list[ast.stmt]:
    """Return the statements of a module, without docstrings; none if it cannot be read: importing it will
    raise the error."""
    try:
        return parsed(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []


@cache
def parsed(text: str) -> list[ast.stmt]:
    """Return the statements of a module's text, without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DEFINITION) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree.body


def bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines, also inside ``if`` and ``try``."""
    if isinstance(node, DEFINITION):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from map(bound_by, node.names)
    else:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
            elif isinstance(inner, DEFINITION):
                yield inner.name
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                yield from map(bound_by, inner.names)


def changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names of a module whose objects a statement may change: by a call, by a decorator, or by an
    assignment to an item or attribute, in functions, too."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Subscript | ast.Attribute) and not isinstance(inner.ctx, ast.Load):
            yield from (name for name, *_ in chains(inner))
    called = node.decorator_list if isinstance(node, DEFINITION) else [node] * isinstance(node, ast.Expr)
    yield from (name for expression in called for name, *_ in chains(expression))


def names_of(file: Path | None) -> set[str]:
    """Return the names that a module defines."""
    return {name for node in statements(file) for name in bound(node)} if file else set()


def bound_by(alias: ast.alias) -> str:
    """Return the name that an import binds: ``a`` of ``import a.b``, ``c`` of ``import a.b as c``."""
    return alias.asname or alias.name.split(".")[0]


def source_file(module: str, package: str) -> Path | None:
    """Return a module's file without importing it; None if it belongs to torch or another installed
    package."""
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
