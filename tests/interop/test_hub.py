"""init_from=gpt2 downloads from the Hugging Face hub, here a local server, and says how to do without it."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from interop.hub import HUB
from tests.conftest import ROOT
from tests.helpers import gpt2_models
from tests.helpers.programs import PATIENCE

SCRIPT = """
import sys
from interop.pretrained import pretrained
try:
    weights = pretrained("gpt2").tensors(8, 61)
    print(pretrained("gpt2").digest)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class Hub(BaseHTTPRequestHandler):
    """A hub that serves a folder; ETags are git's hash for small files and the SHA-256 for large ones."""

    folder: Path
    lies_of = ""  # name of the file whose hash is wrong
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        prefix = f"/openai-community/gpt2/resolve/{HUB['gpt2']}/"
        file = self.folder / self.path.removeprefix(prefix)
        if not self.path.startswith(prefix) or not file.is_file():
            self.send_error(404)
            return
        content = file.read_bytes()
        large = hashlib.sha256(content).hexdigest()
        small = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        digest = large if file.suffix == ".safetensors" else small
        if file.name == self.lies_of:
            digest = "0" * len(digest)
        self.send_response(200)
        for name in ("Content-Length", "X-Linked-Size"):
            self.send_header(name, str(len(content)))
        for name in ("ETag", "X-Linked-ETag"):
            self.send_header(name, f'"{digest}"')
        self.send_header("X-Repo-Commit", HUB["gpt2"])
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 the name is http.server's

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[type[Hub]]:
    gpt2_models.saved(tmp_path / "remote")
    Hub.folder, Hub.lies_of, Hub.asked = tmp_path / "remote", "", []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield Hub
        server.shutdown()


def load_gpt2(tmp_path: Path, url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Load gpt2 from the hub at ``url`` in a new process, with a new cache."""
    settings = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=os.environ | settings | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_it_is_fetched_once_and_is_what_the_hub_has(tmp_path, hub):
    first = load_gpt2(tmp_path, hub.url)
    assert first.returncode == 0, first.stderr
    assert "init_from=gpt2: downloading model.safetensors from the Hugging Face hub" in first.stdout
    n = len(hub.asked)
    assert n > 0
    again = load_gpt2(tmp_path, hub.url)
    assert "downloading" not in again.stdout
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert len(hub.asked) == n  # everything was in the cache


@pytest.mark.slow
def test_weights_that_are_not_what_the_hub_says_are_refused(tmp_path, hub):
    hub.lies_of = "model.safetensors"
    done = load_gpt2(tmp_path, hub.url)
    assert done.returncode == 1
    assert "is damaged (its hash differs from the hub's); delete the file" in done.stderr


def test_without_a_way_to_the_hub_it_says_what_to_do(tmp_path):
    done = load_gpt2(tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("ConfigError: init_from: gpt2 cannot be downloaded (")
    assert "or give a folder with config.json and model.safetensors" in done.stderr


def test_without_huggingface_hub_the_error_says_what_to_install(tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without/huggingface_hub.py").write_text("raise ImportError")
    done = load_gpt2(tmp_path, "", PYTHONPATH=os.pathsep.join([str(tmp_path / "without"), str(ROOT)]))
    assert done.returncode == 1
    assert "pip install -r requirements-hub.txt, or give a folder" in done.stderr
