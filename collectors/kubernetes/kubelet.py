"""The kubelet's PodResources API: which container holds which devices, as the kubelet itself handed them out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from graynode.collectors.base import NoSource
from graynode.collectors.kubernetes.wire import Devices, Held, WireError, allocatable_response, list_response

_SERVICES: Final = ("/v1.PodResourcesLister", "/v1alpha1.PodResourcesLister")
_DEADLINE: Final = 4
_UNIMPLEMENTED: Final = 12
_REST_S: Final = 60.0
"""A kubelet that accepts and does not answer costs a whole deadline each time: it is left alone for so long."""
T = TypeVar("T")
INSTALL: Final = "the kubelet speaks gRPC: pip install 'graynode[kubernetes]'"


class Unreachable(Exception):
    """The kubelet gave no answer that can be used. ``refused``: this user may not ask it."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Kubelet:
    """Asks over ``socket``, each time anew: the kubelet makes another socket when it starts again.

    ``call`` is ``grpc.unary``. Raises ``NoSource`` where the HTTP/2 library is not installed.
    """

    def __init__(
        self,
        socket: Path,
        deadline_s: float = 2.0,
        call: Callable[..., bytes] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            from graynode.collectors.kubernetes import grpc
        except ImportError as error:
            raise NoSource(INSTALL) from error
        self._grpc, self._unary = grpc, call or grpc.unary
        self._socket, self._deadline_s = socket, deadline_s
        self._service = _SERVICES[0]
        self._monotonic, self._rests_until_s, self._hung = monotonic, 0.0, ""

    def held(self) -> list[Held]:
        """What each container holds. ``Unreachable`` for whatever goes wrong."""
        return self._ask("List", list_response)

    def allocatable(self) -> list[Devices] | None:
        """All devices that may be handed out; ``None`` where the kubelet is older than 1.23."""
        if self._service != _SERVICES[0]:
            return None
        return self._ask("GetAllocatableResources", allocatable_response)

    def _ask(self, method: str, parse: Callable[[bytes], T]) -> T:
        if self._monotonic() < self._rests_until_s:
            raise Unreachable(self._hung)
        try:
            return parse(self._call(method))
        except (PermissionError, FileNotFoundError, ConnectionRefusedError) as error:
            refused = isinstance(error, PermissionError)
            raise Unreachable(f"{self._socket}: {error.strerror}", refused=refused) from error
        except (OSError, self._grpc.GrpcError, WireError) as error:
            said = f"{self._socket}: {method}: {error}"[:300]
            if isinstance(error, self._grpc.GrpcError) and error.code == _DEADLINE:
                self._rests_until_s, self._hung = self._monotonic() + _REST_S, said
            raise Unreachable(said) from error

    def _call(self, method: str) -> bytes:
        try:
            return self._unary(self._socket, f"{self._service}/{method}", deadline_s=self._deadline_s)
        except self._grpc.GrpcError as error:
            if error.code != _UNIMPLEMENTED or method != "List":
                raise
        other = next(service for service in _SERVICES if service != self._service)
        answer = self._unary(self._socket, f"{other}/{method}", deadline_s=self._deadline_s)
        self._service = other
        return answer
