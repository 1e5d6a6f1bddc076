"""JUnit XML for CI: one suite a drill, one case an expectation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from heddle_emulator.report.evidence import Evidence

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot say."""


def junit(evidences: Iterable[Evidence]) -> str:
    """The document, as text."""
    root = Element("testsuites")
    for evidence in evidences:
        _suite(root, evidence)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, evidence: Evidence) -> None:
    name, found = _said(evidence.drill), evidence.expectations
    errors = 1 if evidence.fault else 0
    failures = sum(not one.held for one in found)
    numbers = {"tests": len(found) + errors, "failures": failures, "errors": errors}
    told = {"name": name, **{key: str(value) for key, value in numbers.items()}}
    suite = SubElement(root, "testsuite", told | {"time": f"{evidence.seconds:.3f}"})
    if evidence.fault:
        case = SubElement(suite, "testcase", classname=name, name="runs")
        SubElement(case, "error", message=_said(evidence.fault))
    for one in found:
        what = _said(f"{one.what}: {one.wanted}")
        case = SubElement(suite, "testcase", classname=name, name=what)
        if not one.held:
            SubElement(case, "failure", message=_said(one.text))


def _said(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
