"""What is fetched over a network, which nothing here does unless it must: with a limit on the whole time."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 30.0


class DownloadError(Exception):
    """Why nothing was fetched."""


def within(seconds: float, fetch: Callable[[], T]) -> T:
    """What ``fetch`` gives. It is in a thread of its own, as names are looked up with no time limit.

    Raises:
        DownloadError: it failed, or took longer.
    """
    got: list[T] = []
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            got.append(fetch())
        except Exception as error:  # whatever a network can do
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise DownloadError(" ".join(str(errors[0]).split())[:200] or type(errors[0]).__name__)
    if not got:
        raise DownloadError(f"nothing came within {seconds:.0f} s")
    return got[0]


def download(url: str, limit: int) -> bytes:
    """The file at ``url``, of at most ``limit`` bytes. Raises DownloadError."""

    def fetch() -> bytes:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                return answer.read(limit)
        except urllib.error.HTTPError as error:
            error.close()  # it is an open answer, too
            raise

    return within(SECONDS, fetch)
