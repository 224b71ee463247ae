"""Text arrives byte for byte, or an error says why not."""

import http.server
import threading

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


def test_a_file_is_kept_byte_for_byte(tmp_path):
    content = "\ufeffa\r\nb\rc\n nul\0nul é 🙂 e\u0301 \x85\u2028".encode()
    (tmp_path / "text").write_bytes(content)
    assert text(str(tmp_path / "text")).encode() == content


def test_a_folder_is_its_txt_files_in_order_of_name_without_hidden_ones(tmp_path):
    for name, content in (("b.txt", b"second"), ("a.txt", b"first\r\n"), ("c.md", b""), ("._a.txt", b"\xff")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".#a.txt").symlink_to("nowhere")  # as Emacs locks a file
    assert text(str(tmp_path)) == "first\r\nsecond"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nope", None, "No such file"),
        ("", None, "has no .txt files; give a UTF-8 text file or a folder of .txt files"),
        ("empty", b"", "has no characters"),
        ("latin", b"abc\xe9def", "byte 0xe9 at offset 3 is not UTF-8"),
    ],
)
def test_an_unusable_text_is_one_clear_error(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        text(str(tmp_path / name))
    assert str(caught.value).startswith(f"data.path: {tmp_path / name}")


FIRST = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def served(monkeypatch):
    """A local server in place of the real one: it sends ``served["text"]``, or never answers if it is
    None."""
    sends, end = {"text": FIRST, "requests": 0}, threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sends["requests"] += 1
            if sends["text"] is None:
                end.wait()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(sends["text"])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(corpora, "SECONDS", 0.2)
        monkeypatch.setattr(corpora, "TINYSHAKESPEARE", f"http://127.0.0.1:{server.server_port}/input.txt")
        monkeypatch.setattr(corpora, "TINYSHAKESPEARE_SHA256", digest(FIRST))
        yield sends
        end.set()
        server.shutdown()


def test_tinyshakespeare_is_downloaded_once_into_the_cache_and_a_changed_file_is_refused(served, tmp_path):
    for _ in range(2):
        assert tinyshakespeare(None, str(tmp_path / "cache")) == FIRST.decode()
    assert served["requests"] == 1
    [file] = (tmp_path / "cache").iterdir()
    assert tinyshakespeare(str(file), "unused") == FIRST.decode()
    file.write_bytes(FIRST.replace(b"h", b"H"))
    for path, remedy in ((str(file), "use data=text"), (None, "delete the file")):
        with pytest.raises(DataError, match=rf"tinyshakespeare\.txt: is not tinyshakespeare .*; {remedy}"):
            tinyshakespeare(path, str(tmp_path / "cache"))


@pytest.mark.parametrize(("sent", "why"), [(b"<html>", "another text"), (None, "timed out")])
def test_a_download_that_fails_is_one_line_with_what_to_do(served, tmp_path, sent, why):
    served["text"] = sent
    remedy = r"data\.path=FILE, put it at \S+tinyshakespeare.txt, or use data=shakespeare"
    with pytest.raises(DataError, match=rf"^data=tinyshakespeare: cannot be downloaded \(.*{why}.*{remedy}"):
        tinyshakespeare(None, str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
