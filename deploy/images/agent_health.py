#!/usr/bin/env python3
"""Exit 0 if the agent in this container answers with its metrics, else 1 with the reason.

An agent serves no gRPC, since it dials out, so there is no health service to ask. An agent without
a controller is healthy: it keeps its entries and goes on repairing, and a restart for that reason
would take the routes away.
"""

from __future__ import annotations

import os
import sys
import urllib.request

LIMIT = 3.0  # seconds; less than the time-out of the HEALTHCHECK
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask when it listens everywhere
SIGN = b"heddle_agent_connected"


def url() -> str:
    """Return the URL of the metrics.

    Raises:
        KeyError: the agent serves no metrics.
    """
    host = os.environ.get("HEDDLE_AGENT_METRICS_HOST", "127.0.0.1")
    host = ANY.get(host, host)
    port = int(os.environ["HEDDLE_AGENT_METRICS_PORT"])
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def main() -> None:
    """Ask once; errors go to standard error, where `docker inspect` shows them."""
    # No proxy, since a variable meant for other programs must not send this off the machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url(), timeout=LIMIT) as answer:
            text = answer.read()
    except KeyError as error:
        sys.exit(f"not known: {error.args[0]} is not set, so there is nothing to ask")
    except (OSError, ValueError) as error:
        sys.exit(f"not healthy: {error}")
    if SIGN not in text:
        sys.exit("not healthy: what answers is not the agent")


if __name__ == "__main__":
    main()
