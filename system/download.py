"""Downloads with a limit on the total time."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
SECONDS = 30.0


class DownloadError(Exception):
    """A download failed; the message says why."""


def fetch_within(seconds: float, fetch: Callable[[], T]) -> T:
    """Return the result of ``fetch``. Raises DownloadError if ``fetch`` fails or takes longer. ``fetch`` runs
    in a thread, as looking up a host name cannot be given a time limit."""
    future: Future[T] = Future()

    def attempt() -> None:
        try:
            future.set_result(fetch())
        except Exception as error:  # a network can raise anything
            future.set_exception(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        raise DownloadError(f"no answer within {seconds:.0f} s") from None
    except Exception as error:
        raise DownloadError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def download(url: str, limit: int) -> bytes:
    """Return the first ``limit`` bytes of the file at ``url``. Raises DownloadError."""

    def fetch() -> bytes:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as response:
                return response.read(limit)
        except urllib.error.HTTPError as error:
            error.close()  # the error is also an open response
            raise

    return fetch_within(SECONDS, fetch)
