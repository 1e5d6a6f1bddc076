"""The planning process: it thinks, so that whoever talks to the controller never waits for that.

``core`` is what it does, whoever calls it: it keeps the newest plan of each fabric ready for the
next repair, and answers what-if and the search for a better plan. ``process`` runs a core in a
process of its own and speaks to it over one pipe (``protocol``: arrays go in shared memory;
``mirror``: both ends remember what was said, so that only changes travel). A process that is
killed, hangs or runs out of memory is replaced and told everything again: it holds nothing that
the controller does not have.
"""
