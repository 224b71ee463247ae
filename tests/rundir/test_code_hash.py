"""The source of a class changes with everything that the class uses, and with nothing else."""

import pytest

from rundir.code_hash import source
from system.errors import ConfigError
from tests.helpers.configs import component
from training.build import bind

CODE = '''
"""A module."""
SIZE: float = 2.0

def helper(x):
    """Doubles."""
    return SIZE * x  # a comment

class Base:
    pass

class Norm(Base):
    """A norm."""
    def forward(self, x):
        return helper(x)

class Other:
    pass
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def source_of(code: str) -> str:
        (tmp_path / "a_module.py").write_text(code)
        source.cache_clear()  # as in another process
        return source("a_module.Norm")

    return source_of


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("return helper(x)", "return helper(x) + 1", True),
        ("SIZE * x", "SIZE + x", True),
        ("SIZE: float = 2.0", "SIZE: float = 3.0", True),
        ("class Base:\n    pass", "class Base:\n    a = 1", True),
        ('"""A norm."""', '"""Another text."""', False),
        ("# a comment", "# another", False),
        ("class Other:\n    pass", "class Other:\n    a = 1", False),
        ('"""Doubles."""\n', "", False),
    ],
)
def test_the_source_of_a_norm_changes_with_all_that_it_uses_and_nothing_else(module, before, after, changes):
    assert before in CODE
    assert (module(CODE) != module(CODE.replace(before, after))) == changes


def test_our_source_is_found_and_torchs_is_left_out():
    assert "square().mean" in source("model.norms.LayerNorm")
    assert "def at_least_fp32" in source("model.norms.LayerNorm")
    assert "class BatchNorm" not in source("model.norms.LayerNorm")
    assert "class Placement" in source("model.placements.Post")
    assert source("torch.nn.LayerNorm") == ""
    assert source("os.system") == ""


def test_a_module_that_is_not_python_is_an_error_of_its_line(module):
    assert module("class Norm(:") == ""
    with pytest.raises(ConfigError, match="norm._target_: a_module.Norm cannot be imported .*line 1"):
        bind("norm", component("a_module.Norm"))


def test_so_is_a_module_that_it_imports(module, tmp_path):
    (tmp_path / "a_broken.py").write_text("x = 1\ny = = 2\n")
    for code in (
        "from a_broken import y\nclass Norm:\n    f = y\n",
        "import a_broken\nclass Norm:\n    f = a_broken.y\n",
    ):
        assert "class Norm" in module(code)
        with pytest.raises(ConfigError, match="a_broken.py.*line 2"):
            bind("norm", component("a_module.Norm"))


def test_imports_of_the_users_own_files_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .half import Half as Mine\n")
    (package / "half.py").write_text("from a_helper import scaled\n\nclass Half:\n    f = scaled\n")
    (tmp_path / "a_helper.py").write_text("A, B = 2.0, 3.0\n\ndef scaled(x):\n    return A * x\n")
    first = source("a_package.Mine")
    assert "class Half" in first
    assert "def scaled" in first
    (tmp_path / "a_helper.py").write_text("A, B = 4.0, 3.0\n\ndef scaled(x):\n    return A * x\n")
    source.cache_clear()
    assert source("a_package.Mine") != first


@pytest.mark.parametrize(
    ("statement", "use"),
    [
        ("import a_helper", "a_helper"),
        ("import a_helper as h", "h"),
        ("import a_folder.a_helper", "a_folder.a_helper"),
        ("from a_folder import a_helper as h", "h"),
    ],
)
def test_modules_of_the_users_own_are_followed(tmp_path, monkeypatch, statement, use):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_norm.py").write_text(f"{statement}\n\n\nclass Norm({use}.Base):\n    pass\n")
    sources = set()
    for value, unused in ((1, 1), (2, 1), (2, 2)):
        code = (
            f"import a_norm  # a circle\n\nA = {value}\n\n\nclass Base:\n    a = A\n\n\nUNUSED = {unused}\n"
        )
        for folder in (tmp_path, tmp_path / "a_folder"):
            (folder / "a_helper.py").write_text(code)
        source.cache_clear()
        sources.add(source("a_norm.Norm"))
    assert len(sources) == 2


def test_definitions_inside_of_if_and_all_assignments_count(module):
    code = "import os\nif os.name:\n    K = 1\nelse:\n    K = 2\n"
    code += "L = 1\nL = 2\n\n\nclass Norm:\n    k, l = K, L\n"
    for before, after in (("K = 1", "K = 3"), ("L = 1", "L = 3"), ("L = 2", "L = 3")):
        assert module(code) != module(code.replace(before, after))


def test_a_norm_that_extends_ours_changes_with_ours(module):
    assert "at_least_fp32" in module(
        "from model.norms import LayerNorm\n\nclass Norm(LayerNorm):\n    pass\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    from a_helper import scale\nexcept ImportError:\n    pass\n\nclass Norm:\n    f = scale\n",
        "from a_helper import *\n\nclass Norm:\n    f = scale\n",
        "class Norm:\n    def f(self, x):\n        from a_helper import scale\n        return scale(x)\n",
        "if True:\n    import a_helper as h\n\nclass Norm:\n    f = h.scale\n",
    ],
)
def test_imports_inside_of_try_if_and_functions_and_of_everything_are_followed(module, tmp_path, code):
    sources = set()
    for factor, other in ((1, 1), (5, 1), (5, 2)):
        helper = f"def scale(x):\n    return {factor} * x\n\ndef other(x):\n    return {other} * x\n"
        (tmp_path / "a_helper.py").write_text(helper)
        sources.add(module(code))
    assert len(sources) == 2


REGISTRY = """
FUNCTIONS = {}
def register(name):
    def add(function):
        FUNCTIONS[name] = function
        return function
    return add
@register("square")
def square(x):
    return x * x
class Norm:
    def forward(self, x):
        return FUNCTIONS["square"](x)
"""


@pytest.mark.parametrize(
    ("code", "before", "after"),
    [
        ("O = {}\nO['power'] = 2\nclass Norm:\n    o = O\n", "2", "1"),
        ("O = []\nO.append(2)\nclass Norm:\n    o = O\n", "2", "1"),
        ("class O:\n    pass\nO.power = 2\nclass Norm:\n    o = O\n", "2", "1"),
        ("O = [1]\nO[0] += 2\nclass Norm:\n    o = O\n", "2", "1"),
        (REGISTRY, "x * x", "x + x"),
    ],
)
def test_what_changes_an_object_counts(module, code, before, after):
    assert module(code) != module(code.replace(before, after))
    own = "\n\nclass Other:\n    def __init__(self):\n        self.weight = "
    assert module(code + own + "1\n") == module(code + own + "2\n")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_norm_that_its_module_imports_by_a_star_is_followed(module, tmp_path, depth):
    sources = set()
    for factor in (1, 5):
        (tmp_path / "a_helper.py").write_text("from b_helper import *\n")
        norm = f"class Norm:\n    factor = {factor}\n"
        (tmp_path / f"{'ab'[depth - 1]}_helper.py").write_text(norm)
        sources.add(module("from a_helper import *\n"))
    assert len(sources) == 2
