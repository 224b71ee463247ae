"""No code of the project unpickles, evaluates a text, or lets a library do so."""

import ast

from tests.conftest import ROOT

FORBIDDEN = {
    *("eval", "exec", "__import__", "pickle.load", "pickle.loads", "torch.load", "os.system"),
    *("yaml.unsafe_load", "yaml.full_load", "dill.load", "joblib.load", "marshal.load", "marshal.loads"),
}
OPTIONS = {"allow_pickle": "False", "trust_remote_code": "False", "weights_only": "True", "shell": "False"}


def test_no_code_unpickles_or_evaluates():
    files = [file for file in ROOT.rglob("*.py") if file.relative_to(ROOT).parts[0] not in ("tests", ".venv")]
    assert len(files) > 90
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("Loader", "UnsafeLoader", "FullLoader"), f"{file}:{node.lineno}"
            if isinstance(node, ast.Call):
                where = f"{file}:{node.lineno}"
                assert ast.unparse(node.func) not in FORBIDDEN, where
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.items() & OPTIONS.items() == {
                    (key, value) for key, value in given.items() if key in OPTIONS
                }, where
