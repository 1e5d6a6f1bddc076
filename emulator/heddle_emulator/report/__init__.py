"""Reports: the results of a run as plain data, and as a page for people.

``evidence`` defines the data, which the worlds fill, and ``folder`` keeps it as JSON.
Nothing here depends on a world, so a page can be made again from its JSON on any machine.
"""
