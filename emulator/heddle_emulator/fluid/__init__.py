"""The fluid world: the rates of streams that share links, and their effect over time.

It has no packets. It makes these assumptions about them:

- QPs that meet at a link get equal shares of it, as rate control and round-robin links ensure. What
  waits at one link takes nothing from another link, so a QP has a bounded number of packets on its
  way. Where links serve packets in order of arrival, QPs that meet several full links get less than
  their share, and TCP in one queue for all gets its share only in the long run.
- Rates are steady between two events; the time in which congestion control finds them is left out.
  A message of a few hundred packets is over before, say, DCTCP has found its rate. It can take half
  as long again.
- Only packets without a path are lost, and no queue is full: there are no drops of an incast and no
  pauses that spread from link to link. Reverse traffic is what callers say it is.
- A message has many packets. If it has few, to each of many receivers, their order is chance.

Under these assumptions, makespans are within 5 % of those of packets, and of TCP over kernels. The
tests draw fabrics, patterns, collectives and costs of messages at random.
(``tests/property/packet_net.py`` simulates bytes, headers, windows and queues, and shares nothing
with this package.) ``tests/bench/same_world.py`` sends real bytes. Of 933 cases from 256 KiB a rank
up, 8 were further off. In 6 of these, links serve packets in order of arrival, and the worst was
off by -11 %. The others exceeded 5 % by less than half a percent. The rest of the error comes from
the size of packets, and from which of several rings that share links have to wait.

``queues`` simulates how many bytes wait where, for cases in which several links on a path are full
and the fluid model is too coarse.
"""
