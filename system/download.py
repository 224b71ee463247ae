"""Downloads, with a limit on the whole time."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 30.0


class DownloadError(Exception):
    """A download failed; the message says why."""


def within(seconds: float, fetch: Callable[[], T]) -> T:
    """Return the result of ``fetch``, run in a thread of its own: looking up a name has no time limit. Raises
    DownloadError if it fails or takes longer."""
    results: list[T] = []
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            results.append(fetch())
        except Exception as error:  # anything that a network can raise
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise DownloadError(" ".join(str(errors[0]).split())[:200] or type(errors[0]).__name__)
    if not results:
        raise DownloadError(f"no answer within {seconds:.0f} s")
    return results[0]


def download(url: str, limit: int) -> bytes:
    """Return the file at ``url``, at most its first ``limit`` bytes. Raises DownloadError."""

    def fetch() -> bytes:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as response:
                return response.read(limit)
        except urllib.error.HTTPError as error:
            error.close()  # the error is also an open response
            raise

    return within(SECONDS, fetch)
