"""Bringing a committed plan into the switches, make before break.

A pure core decides and a thin driver sends. The core keeps a *ledger*. It says of each
wanted entry whether its switch is known (by FIB ack) to hold it, and of each other entry
that a switch holds what has to happen to it.

**Making.** The entries of one pair of NICs change together, starting at the destination:
an entry is sent once every switch further along the new path has acknowledged its own.
Each packet then follows old entries until it meets the first new one, and new ones from
there to the end, so it can neither loop nor vanish. Depth is counted on the paths of the
plan and not on entries alone. A path may cross a switch where it needs no entry but where
an old entry still exists. That old entry is removed in its turn, in the same order in
which entries are set.

**Breaking.** Entries that are no longer wanted are deleted once their pair uses its new
path. If the pair has no new path, they are deleted from the source on: packets then fall
to the underlay before the entries that they would follow are gone.

**Detours.** These rules are not enough when links fail during a rollout. A switch turns
packets aside when a link on the path of their entry is down: to the entry's backup, or to
the underlay. The packets may then meet entries of either plan again. Assume that every
switch knows which links are down, and that the underlay has converged on the remaining
links. A packet then makes progress whatever it meets:

- the underlay: the next switch is nearer, by hops, to the destination;
- a backup: it leads to a switch that is no further away, and on from there by hops that
  the underlay would take as well;
- an entry, old or new, whose path is up and is a shortest path of the whole fabric: that
  path is still a shortest one, so the next switch is nearer, whatever it holds;
- a new entry whose path is up but longer, a *detour*: everything beyond it was made
  before and is up, so the packet arrives;
- an old detour whose path is up: its packets arrive as long as nothing beyond it changes.
  Otherwise they may meet a new entry whose path is lost, or no entry where there was one,
  be turned aside there and come back. So before anything changes beyond a detour, it is
  made *guarded*: it keeps its next hop, but is also at risk by the links of the new paths
  of its pair. While these are up, its packets go on to the first new entry and arrive.
  Once one of them is down, its own switch turns packets aside. Guarding is a change as
  well, so it is done from the source on. The new entry replaces the guarded one in its
  turn.

So no packet is sent over a dead link and none circles: each hop brings it nearer until an
entry takes it all the way. This needs two more rules. Detours that are left over are also
deleted from the source on. A detour at a switch whose table is not known, which may or may
not be held, is deleted from the source on instead of being guarded. A detour at a switch
that is away is not waited for.

**Lost paths.** Where the old path is lost anyway, and neither it nor the new one is a
detour, there is no whole path to keep, and no packet can come back. Everything is then
sent at once, except for the first entry of the new path, which follows (``lost_paths``).

**Blocking.** A switch that is away or silent, or an entry that a switch cannot take, holds
up only the pairs that need it. Such a pair stays on its old path. It is taken back to the
underlay, from the source on, only where the old path is known to be dead or where a full
table needs the room.

Height is the order in which a packet meets entries, whatever generation they belong to: it
falls along the path. "From the source on" is decided by height, also when one rollout
after another is superseded half way.

**New leaders.** A new leader knows plans and facts from the store, and asks every switch
for the digest of what it holds. If the digest is not one that it expected, it asks for
every entry. Pairs that may have entries at that switch wait for the answer until the
patience with the switch ends. Once nothing about a pair is in doubt, heights are found by
following its entries (``levels``). Agents that do not list their entries leave their
switches in doubt. Then everything that stored plans wanted there is removed in its turn,
in the order of those plans, and the rest is swept at the end.
"""
