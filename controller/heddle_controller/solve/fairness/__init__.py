"""Among plans of equal worst load, finds the one that serves slow flows best.

The aim is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5): raise the
smallest ratio of fair rate to demand and priority, then the next. QPs of crowded arcs are placed
again, so that large ones meet few others. Flows exchange QPs in pairs while the levels of arcs are
taken as given. Where several flows must change places at once, CP-SAT places neighbourhoods of the
slowest again. In small cases placements are tried by the rates that they would give, either all of
them or by a climb and a random walk. Of those that are equally fair, one is chosen by playing it in
queues with PFC.

Cost: counted in QPs placed, exchanges, programmes and placements looked at. Except in small cases,
nothing is done unless a link that could be avoided is overloaded.
"""
