"""How often parts of AI fabrics break, as published, and what follows for the next failure.

======================  =================================================================
cables                  0.057 % of links between NIC and leaf fail in a month (Alibaba HPN,
                        SIGCOMM 2024, 10.1145/3651890.3672265)
switches                2 % fail within three months of service (Surviving switch failures
                        in cloud datacenters, CCR 51(2), 2021)
flaps                   one every 48 s over 10 million optical links (The Ghost in the
                        Datacenter, arXiv 2603.03736, from the same sources)
network of a large job  8.4 % of 419 unexpected interruptions in 54 days on 16,384 GPUs
                        (Llama 3): 0.12 % of GPUs a month
======================  =================================================================

The last is how the others are checked: two links and a fifteenth of a switch for each GPU
come to 0.16 % of GPUs a month by the first two, and not all of these end a job. That links
between switches fail as often as those of NICs, and how long it takes until one is mended,
is assumed: nobody has published it for such fabrics.
"""

from __future__ import annotations

from dataclasses import dataclass

HOURS_A_MONTH = 30 * 24.0
CABLE = 0.057e-2 / HOURS_A_MONTH
"""Failures of one link in an hour."""
SWITCH = 2e-2 / (3 * HOURS_A_MONTH)
"""Failures of one switch in an hour."""
FLAP = 3600 / 48 / 10e6
"""Flaps of one link in an hour."""
INTERRUPTIONS = 0.084 * 419 / (54 * 24.0) / 16_384
"""Interruptions by the network that one GPU meets in an hour, in a job of so many."""
MEND_HOURS = 24.0
"""Until what is broken is mended, unless the caller knows better."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a fabric has to expect in an hour."""

    links: float
    flaps: float
    switches: float

    @property
    def total(self) -> float:
        """Events of any kind in an hour."""
        return self.links + self.flaps + self.switches

    @property
    def lasting(self) -> float:
        """Events in an hour that leave something broken until it is mended."""
        return self.links + self.switches


def expected_failures(links: int, switches: int) -> Expected:
    """Failures to expect of so many links and switches."""
    return Expected(links * CABLE, links * FLAP, switches * SWITCH)
