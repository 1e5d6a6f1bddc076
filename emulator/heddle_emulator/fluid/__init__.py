"""The fluid world: what rates streams get where they share links, and what comes of it in time.

It knows no packets. What it assumes of those that it stands for:

- QPs that meet at a link share it alike, as rate control and links that serve them in turns see
  to, and what waits at one link takes nothing of another: so a QP has a bounded number of packets
  on its way. Where links serve packets as they come, QPs that meet several full links get less
  than their share, and TCP in one queue for all finds it in the long run only.
- All is steady between two events: the time in which rates are found is left out. A message of a
  few hundred packets is over before DCTCP, say, has found its rate: it can take half as long
  again.
- Nothing is lost but what has no way, and no queue is full: no drops of an incast, no pauses that
  spread from link to link. Reverse traffic is what callers say it is.
- A message is many packets. Of a few to each of many others, which comes first is chance.

Held to that, makespans are those of packets, and of TCP over kernels, within 5 %: the tests draw
fabrics, patterns, collectives and costs of messages at random (``tests/property/packet_net.py``
knows bytes, headers, windows and queues, and nothing of this), and ``tests/bench/same_world.py``
sends real bytes. In 933 cases from 256 KiB a rank, 8 were further off, 6 of them where links serve
packets as they come, to -11 %; the others by less than half a percent more. What is left is
packets' grain, and which of several rings that share links have to wait.

Where links are full one after another and that is too coarse, ``queues`` keeps what waits where.
"""
