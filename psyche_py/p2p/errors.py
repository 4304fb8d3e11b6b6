"""Errors of the mesh.

NetworkError (5)
|-- PortTaken            the listening port belongs to another process
|-- ListenFailed         the listening address is not one of this machine
|-- PeerUnreachable      no connection to that peer right now
|-- FetchFailed          no holder delivered the blob before the deadline
|-- RequestFailed        the peer answered with an error, or not in time
|-- StoreFull            a blob does not fit into the store's byte limit
|-- MessageError         bytes that are not a valid announcement body
|-- FrameError           bytes that are not a valid signed frame
`-- HintError            bytes or text that are not a valid address hint
"""

from __future__ import annotations

from collections.abc import Sequence

from psyche_py.errors import NetworkError


class PortTaken(NetworkError):
    """Another process listens on the port we were told to use."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"Port {port} on {host} is taken by another process.",
            "Choose another with --listen-port; 0 lets the system pick one.",
        )
        self.host = host
        self.port = port


class ListenFailed(NetworkError):
    """We cannot listen on the address we were told to use."""


class PeerUnreachable(NetworkError):
    """There is no live connection to ``peer_key`` (not allowed, not dialable, or gone)."""

    def __init__(self, peer_key: bytes, reason: str) -> None:
        super().__init__(f"Peer {peer_key.hex()[:12]} is unreachable: {reason}.")
        self.peer_key = peer_key
        self.reason = reason


class StreamBroken(NetworkError):
    """A stream or the connection below it is gone, or the peer did not keep to the protocol.

    ``offence``: the kind of offence (offences.py), when no honest peer on any network does this; else empty.
    """

    def __init__(self, what: str, offence: str = "") -> None:
        super().__init__(what)
        self.offence = offence


class FetchFailed(NetworkError):
    """No holder delivered the blob; ``failures`` says why, one (peer key, reason) per attempt."""

    def __init__(self, digest: bytes, failures: Sequence[tuple[bytes, str]]) -> None:
        shown = "; ".join(f"{key.hex()[:12]}: {reason}" for key, reason in failures[-4:])
        super().__init__(
            f"Blob {digest.hex()[:12]} was not delivered by any holder ({shown or 'nobody to ask'}).",
            "It is tried again while it is needed.",
        )
        self.digest = digest
        self.failures = tuple(failures)


class RequestFailed(NetworkError):
    """A peer refused a request, failed at it, answered too much, or did not answer in time."""

    def __init__(self, peer_key: bytes, kind: str, reason: str) -> None:
        super().__init__(f"Request {kind!r} to peer {peer_key.hex()[:12]} failed: {reason}.")
        self.peer_key = peer_key
        self.kind = kind
        self.reason = reason


class StoreFull(NetworkError):
    """A blob does not fit into the blob store."""


class MessageError(NetworkError):
    """The body of an announcement is malformed."""


class FrameError(NetworkError):
    """A frame is too long, too short, or its signature is wrong."""


class HintError(NetworkError):
    """An address hint is malformed."""


def unwrap(group: ExceptionGroup[Exception]) -> NetworkError:
    """The error that ended a network: our own if it is the only one, else that it crashed."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, NetworkError):
        return error
    return NetworkError("The mesh has crashed.", "Start the client again and report this.")
