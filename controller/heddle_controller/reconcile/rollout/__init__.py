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

**Blocking.** A switch that is away or silent, or an entry that it cannot take, holds
up the pairs that need it and no others. Such a pair stays on its old path; only
where that is known to be dead, or where a full table needs the room, is it taken
back to the underlay, from the source on.

Height is the order in which a packet meets entries, whatever generation they are
of: it falls along the way. It is what "from the source on" goes by when a rollout
is superseded half way, again and again.
"""
