"""The fluid world: what rates streams get where they share links, and what comes of it in time.

It knows no packets. What it assumes of those that it stands for:

- QPs that meet at a link share it alike, as rate control and links that serve them in turns see
  to, and what waits at one link takes nothing of another: so a QP has a bounded number of packets
  on its way. Where links serve packets as they come, QPs that meet several full links get less
  than their share, and TCP in one queue for all finds it in the long run only.
- All is steady between two events: the time in which rates are found is left out.
- Nothing is lost but what has no way, and reverse traffic is what callers say it is.

Held to that, makespans are those of packets, and of TCP over kernels, within 5 %: the tests draw
fabrics, collectives and costs of messages at random, and ``tests/bench/same_world.py`` sends real
bytes. What is left is packets' grain, and which of several rings that share links have to wait.
"""
