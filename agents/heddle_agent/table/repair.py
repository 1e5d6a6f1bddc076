"""Local repair: a link is lost or comes back, and the groups that depend on it move at once.

Work grows with the groups at risk, not with the entries behind them. Links of this switch and links
far away are the same to it; who reports them (the kernel, a peer, a test) is not its affair.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle_agent.fib import Choice, Link, Steering
from heddle_agent.table.state import Table


def links_changed(table: Table, changes: Mapping[Link, bool]) -> tuple[Table, Steering | None]:
    """The table after links went up (True) or down (False); None if it knew all of that."""
    up = {link for link, state in changes.items() if state}
    down = (table.down - up) | (changes.keys() - up)
    news = down ^ table.down
    if not news:
        return table, None
    choices = {}
    for group in table.groups.touched(news):
        choice = table.groups.choose(group, down)
        if choice is not table.diverted.get(group, Choice.PRIMARY):
            choices[group] = choice
    merged = {**table.diverted, **choices}
    diverted = {group: choice for group, choice in merged.items() if choice is not Choice.PRIMARY}
    return table._replace(down=down, diverted=diverted), Steering(choices, down)
