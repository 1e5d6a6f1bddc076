from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_emulator.campaign.campaign import changed, load_campaign
from heddle_emulator.campaign.trials import Draw

GOOD = """
campaign: example
fabric: {clos: {leaves: 2, spines: 2, nics_per_leaf: 2}}
demands:
  - {pattern: permutation, qps: 4}
draw: published
failures: 30
seed: 7
mend: 3d
notices: datagrams
"""


def _read(folder: Path, text: str) -> Path:
    path = folder / "campaign.yaml"
    path.write_text(text)
    return path


def test_what_a_file_says(tmp_path: Path) -> None:
    """Each key of the file sets its field of the campaign."""
    campaign = load_campaign(_read(tmp_path, GOOD))
    drawing = campaign.drawing
    assert (campaign.name, campaign.failures, campaign.datagrams) == ("example", 30, True)
    assert (drawing.draw, drawing.seed, drawing.mend_hours) == (Draw.PUBLISHED, 7, 72.0)
    assert len(campaign.flows) == 4


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    """Options replace values of the file. Options that are None do not."""
    campaign = load_campaign(_read(tmp_path, GOOD))
    other = changed(campaign, failures=3, seed=8, draw=Draw.EACH, at_once=None, datagrams=None)
    assert (other.failures, other.drawing.seed, other.drawing.draw) == (3, 8, Draw.EACH)
    assert (other.drawing.mend_hours, other.datagrams) == (72.0, True)


def test_each_link_fails_once_unless_told_otherwise(tmp_path: Path) -> None:
    """Two leaves and two spines have four links. Other ways to draw have a thousand trials."""
    campaign = load_campaign(_read(tmp_path, GOOD.replace("failures: 30\n", "")))
    assert len(campaign.trials()) == 1000
    assert len(changed(campaign, draw=Draw.EACH).trials()) == 4
    assert len(changed(campaign, draw=Draw.EACH, failures=9).trials()) == 9


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("failures: 30", "failures: 0", "failures is 0; give an integer, 1 or more"),
        ("draw: published", "draw: worst", "draw is 'worst'"),
        ("mend: 3d", "mend: soon", "mend is 'soon'; give a time such as 24h or 3d"),
        ("seed: 7", "sead: 7", "unknown key 'sead'; did you mean seed?"),
        ("qps: 4", "qps: 0", "demands[0] (line 5): qps is 0"),
        ("  - {pattern: permutation, qps: 4}", "  []", "demands nothing"),
        ("leaves: 2", "leaves: 0", "fabric (line 3)"),
        ("campaign: example", "", "has no campaign; name it"),
    ],
)
def test_faults_are_told_with_their_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    """The error names the place and says what to give."""
    with pytest.raises(InputError) as refused:
        load_campaign(_read(tmp_path, GOOD.replace(old, new)))
    assert told in str(refused.value)
