#!/usr/bin/env python3
"""Exit 0 if the controller in this container says SERVING by grpc.health.v1, else 1 with why.

The address and the security settings are read from the controller's own variables. Over TLS the
server is verified against its own certificate file, so the image needs no authority, and by any
name in it, since nobody issues certificates for loopback. Where clients need a certificate too, the
server's own is used, so it must be valid for both purposes.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

LIMIT = 3.0  # seconds; less than the time-out of the HEALTHCHECK
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask when it listens everywhere


def address() -> tuple[str, int]:
    """Return host and port to ask."""
    host, _, port = os.environ.get("HEDDLE_LISTEN", "127.0.0.1:7400").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return ANY.get(host, host), int(port)


def name_in(cert: Path, host: str, port: int) -> str:
    """Return a name that the server's certificate contains.

    Raises:
        ssl.SSLError: the answering server has another certificate.
    """
    context = ssl.create_default_context(cafile=os.fspath(cert))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the leaf itself is trusted
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), timeout=LIMIT) as plain,
        context.wrap_socket(plain) as secured,
    ):
        found = secured.getpeercert() or {}
    for entry in found.get("subjectAltName", ()):
        return str(entry[1]).replace("*", "health")
    return host


def channel() -> grpc.Channel:
    """Return a channel to the controller."""
    host, port = address()
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not (cert := os.environ.get("HEDDLE_TLS_CERT")):
        return grpc.insecure_channel(target)
    chain = Path(cert).read_bytes()
    credentials = grpc.ssl_channel_credentials(chain)
    if os.environ.get("HEDDLE_TLS_CLIENT_CA"):
        key = Path(os.environ["HEDDLE_TLS_KEY"]).read_bytes()
        credentials = grpc.ssl_channel_credentials(chain, key, chain)
    name = name_in(Path(cert), host, port)
    return grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", name)])


def check(opened: grpc.Channel) -> health_pb2.HealthCheckResponse:
    """Return the health of the server as a whole."""
    ask = opened.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return ask(health_pb2.HealthCheckRequest(), timeout=LIMIT)


def main() -> None:
    """Ask once; errors go to standard error, where `docker inspect` shows them."""
    try:
        with channel() as opened:
            answer = check(opened)
    except grpc.RpcError as error:
        sys.exit(f"not healthy: {error.code().name}: {error.details()}")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"not healthy: {error}")
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(f"not healthy: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")


if __name__ == "__main__":
    main()
