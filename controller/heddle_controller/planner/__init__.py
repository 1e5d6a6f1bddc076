"""The planning process, which makes plans so that the controller's event loop never waits for one.

``core`` does the work: it keeps the newest plan of each fabric ready for the next repair, answers
what-if and placement questions, and looks for better plans. ``process`` runs a core in a process of
its own and talks to it over one pipe. In ``protocol``, arrays go through shared memory, and both
ends remember what was sent, so that only changes travel. A process that is killed, hangs or runs
out of memory is replaced and sent everything again: it holds nothing that the controller does not
have.
"""
