"""Bringing a committed program into the switches, make before break.

A pure core decides, a thin driver sends. The core keeps a *ledger*: of every entry
that is wanted whether its switch is known (by FIB ack) to hold it, and of every
other entry that a switch holds what is to become of it.

**Making.** All entries of one pair of NICs move together, from the destination
back: an entry is sent once every switch further along the new path has
acknowledged its own. Every packet then follows old entries until it meets the
first new one, and new ones from there to the end, so it can neither loop nor
vanish. Depth is counted on the plan's paths, not on entries alone, because a path
may cross a switch where it needs no entry, but where an old one still stands: that
one is removed in its turn, like an entry set.

**Breaking.** What is no longer wanted goes when its pair has moved, from the source
on where the pair has no new path: then packets fall to the underlay before what
they would follow is gone.

**Detours.** While links die in the middle of this, what has been said is not enough. A
switch turns packets aside where a link of its entry's way is down, to its backup or to
the underlay, and they may come to entries of either plan again. Let every switch know
which links are down, and the underlay have settled on what is left. What a packet can
meet then, and why it gets on:

- the underlay: the next switch is nearer, by hops, to the destination;
- a backup: it leads to a switch that is no further away, and on from there by hops that
  are the underlay's as well;
- an entry, old or new, whose way carries and is a shortest one of the whole fabric: it is
  as short now, so the next switch is nearer, whatever it holds;
- a new entry whose way carries but is longer, a *detour*: all that lies beyond it was made
  before, and carries, so the packet arrives;
- an old detour whose way carries: its packets arrive as long as nothing beyond it changed.
  Else they may meet a new entry whose way is lost, or none where one was, be turned aside
  there and come back. So before anything changes beyond it, it is made *guarded*: the same
  next hop, at risk by the new ways of its pair too. While those carry, its packets go on to
  the first new entry and arrive; once one of them does not, it leads nowhere itself. That
  is a change as well, and is made from the source on; the new entry ends it in its turn.

So no packet is sent over a dead link, and none circles: it comes nearer at every hop until
an entry takes it all the way. For that detours that are left over go from the source on,
too, and what only may be held, at a switch of which that is not known, is taken away from
the source on instead of being made guarded. One at a switch that is away is not waited for.

**Lost ways.** Where the old way is lost anyhow, and neither it nor the new one is a detour, there
is no whole way to keep and nothing to come back to: all goes at once, and the first entry of the
new way after it (``lost_paths``).

**Blocking.** A switch that is away or silent, or an entry that it cannot take, holds
up the pairs that need it and no others. Such a pair stays on its old path; only
where that is known to be dead, or where a full table needs the room, is it taken
back to the underlay, from the source on.

Height is the order in which a packet meets entries, whatever generation they are
of: it falls along the way. It is what "from the source on" goes by when a rollout
is superseded half way, again and again.

**New leaders.** One knows plans and facts from the store, and asks every switch for the
digest of what it holds. Where that is none it expected, it asks for every entry: pairs of
which something may be held there wait for the answer, as long as its switch has patience.
Of a pair of which nothing is in doubt any more, heights are read off where the entries
themselves lead (``levels``). Agents that tell no entries leave their switches in doubt: then
all that stored plans wanted there goes in its turn, by the order of those plans, and the
rest is swept at the end.
"""
