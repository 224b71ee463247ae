"""Text arrives byte for byte, or an error says why not."""

import pytest

from data import corpora
from data.corpora import shakespeare, text, tinyshakespeare
from data.errors import DataError
from data.files import digest


def test_a_damaged_shakespeare_is_refused(monkeypatch, tmp_path):
    damaged = tmp_path / "shakespeare.txt.xz"
    damaged.write_bytes(corpora.SHAKESPEARE.read_bytes()[:-9])
    monkeypatch.setattr(corpora, "SHAKESPEARE", damaged)
    with pytest.raises(DataError, match=r"shakespeare.txt.xz: is missing or damaged; restore it"):
        shakespeare()


def test_a_file_is_kept_byte_for_byte_and_a_folder_is_its_txt_files_in_order_without_hidden_ones(tmp_path):
    content = "\ufeffa\r\nb\rc\n nul\0nul é 🙂 e\u0301 \x85\u2028".encode()
    for name, part in (("b.txt", content), ("a.txt", b"first\r\n"), ("c.md", b""), ("._a.txt", b"\xff")):
        (tmp_path / name).write_bytes(part)
    (tmp_path / ".#a.txt").symlink_to("nowhere")  # as Emacs locks a file
    assert text(str(tmp_path / "b.txt")).encode() == content
    assert text(str(tmp_path)).encode() == b"first\r\n" + content


def test_an_unusable_text_is_one_clear_error(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes(b"abc\xe9def")
    for name, message in {
        "nope": "No such file",
        "": "has no .txt files; give a UTF-8 text file or a folder of .txt files",
        "empty": "has no characters",
        "latin": "byte 0xe9 at offset 3 is not UTF-8",
    }.items():
        with pytest.raises(DataError, match=f"^data.path: {tmp_path / name}.*{message}"):
            text(str(tmp_path / name))


FIRST = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """The file that is downloaded."""
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE", (tmp_path / "input.txt").as_uri())
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_SHA256", digest(FIRST))
    return tmp_path / "input.txt"


def test_tinyshakespeare_is_downloaded_once_into_the_cache_and_a_changed_file_is_refused(remote, tmp_path):
    remote.write_bytes(FIRST)
    cache = str(tmp_path / "cache")
    assert tinyshakespeare(None, cache) == FIRST.decode()
    remote.unlink()
    assert tinyshakespeare(None, cache) == FIRST.decode()
    [file] = (tmp_path / "cache").iterdir()
    assert tinyshakespeare(str(file), "unused") == FIRST.decode()
    file.write_bytes(FIRST.replace(b"h", b"H"))
    for path, remedy in ((str(file), "use data=text"), (None, "delete the file")):
        with pytest.raises(DataError, match=rf"tinyshakespeare\.txt: is not tinyshakespeare .*; {remedy}"):
            tinyshakespeare(path, cache)


def test_a_download_that_fails_is_one_line_with_what_to_do(remote, tmp_path):
    remedy = r"data\.path=FILE, put it at \S+tinyshakespeare.txt, or use data=shakespeare"
    for why in ("No such file", "another text"):
        with pytest.raises(
            DataError, match=rf"^data=tinyshakespeare: cannot be downloaded \(.*{why}.*{remedy}"
        ):
            tinyshakespeare(None, str(tmp_path / "cache"))
        remote.write_bytes(b"<html>")
    assert not (tmp_path / "cache").exists()
