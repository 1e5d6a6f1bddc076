"""Among plans of equal worst load the one that serves slow flows best.

The aim is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5): raise the
least fair rate over demand and priority, then the next. Flows exchange QPs in pairs under
given levels of arcs; where several must change places at once, neighbourhoods of the
slowest are placed anew by CP-SAT; in small cases placements are tried by what they would
serve, all of them or by a climb and a random walk.

Cost: counted in exchanges, programmes and placements looked at; nothing where no link that
could be avoided is overloaded, but in small cases.
"""
