"""One HTTP address that takes JSON: one attempt at a time, bounded in time and in what is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import httpx

from graynode.responders.address import checked_url, make_client
from graynode.responders.answers import ANSWER_SHOWN, Tries, judge, retry_after, shown, utc_now
from graynode.responders.base import Outcome


class Post:
    """``client`` belongs to the caller if given. ``UnsafeUrl`` for an address that is not allowed."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
        plain_http: bool = False,
        client: httpx.Client | None = None,
        clock: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = checked_url(url, plain_http=plain_http)
        self._client = client or make_client(url, timeout_s, ca_file)
        self._timeout_s = timeout_s
        self._clock, self._monotonic = clock, monotonic
        self._tries = Tries(monotonic)

    def send(self, identity: str, body: bytes, headers: Callable[[datetime], Mapping[str, str]]) -> Outcome:
        """One attempt. ``identity`` is what attempts at the same message have in common."""
        number, trying_s = self._tries.begin(identity)
        return self._tries.end(identity, self._attempt(body, headers, number, trying_s))

    def ask(self, method: str, path: str, **arguments: str | list[tuple[str, str]] | bytes) -> httpx.Response | None:
        """The whole answer of another request to the same server; none where there is none. Only for small answers."""
        address = httpx.URL(self.url).copy_with(path=path)
        try:
            return self._client.request(method, address, **arguments)  # type: ignore[arg-type]  # content, params
        except httpx.HTTPError:
            return None

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _attempt(
        self, body: bytes, headers: Callable[[datetime], Mapping[str, str]], number: int, trying_s: float
    ) -> Outcome:
        now = self._clock()
        try:
            status, answer, asked = self._post(body, {"content-type": "application/json", **headers(now)})
        except httpx.TimeoutException:
            return Outcome("failed", f"no answer within {self._timeout_s:g} s", number)
        except httpx.HTTPError as error:
            return Outcome("failed", f"not reached: {error or type(error).__name__}", number)
        return judge(status, answer, number, trying_s, retry_after(asked, now))

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, str]:
        """Status, the beginning of the answer, and ``Retry-After``. Never more of an answer is read than is shown.

        httpx bounds each read; the receiver that sends a byte now and then is bounded here.
        """
        end = self._monotonic() + self._timeout_s
        with self._client.stream("POST", self.url, content=body, headers=dict(headers)) as response:
            begun = b""
            if not response.is_success:
                for chunk in response.iter_raw():
                    begun += chunk
                    if len(begun) >= ANSWER_SHOWN or self._monotonic() > end:
                        break
            return response.status_code, shown(begun), response.headers.get("retry-after", "")
