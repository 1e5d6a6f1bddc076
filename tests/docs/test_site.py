"""Faults that the build of the site finds, and the reference that it writes."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "docs.py"


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """The script that builds the site, as a module."""
    spec = spec_from_file_location("heddle_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_links_that_lead_nowhere_and_foreign_files_are_found(
    docs: ModuleType, tmp_path: Path
) -> None:
    """Each fault is reported with its page, and valid links are not reported."""
    (tmp_path / "good.html").write_text('<p id="here"><a href="#here"></a></p>')
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/a.css';")
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#here"></a><a href="good.html#gone"></a><a href="gone.html"></a>'
        '<a href="https://example.com"></a><script src="https://cdn.example/x.js"></script>'
    )
    assert sorted(docs.faults(tmp_path)) == [
        "bad.html loads https://cdn.example/x.js",
        "bad.html: gone.html leads nowhere",
        "bad.html: good.html#gone leads to no place of that page",
        "style.css loads https://fonts.example/a.css",
    ]


def test_a_page_that_names_a_missing_file_ends_the_build(docs: ModuleType, tmp_path: Path) -> None:
    """The error names the page and the link."""
    link = docs.LINK.search("see [it](no/such/file.py)")
    with pytest.raises(SystemExit, match=r"README\.md: no/such/file\.py leads nowhere"):
        docs.led(link, page=Path("README.md"), pages=[], target=tmp_path)


def test_every_message_and_field_has_its_place_in_the_reference(
    docs: ModuleType, tmp_path: Path
) -> None:
    """Each file has a page with its services, methods, messages, fields and their comments."""
    docs.write_reference(tmp_path / "api")
    files = docs.described()
    assert {p.stem for p in (tmp_path / "api").iterdir()} == {Path(f.name).stem for f in files}
    for file in files:
        text = (tmp_path / "api" / f"{Path(file.name).stem}.md").read_text()
        for message in file.message_type:
            assert f"## {message.name}\n" in text
            assert all(f"| `{field.name}` |" in text for field in message.field)
        for service in file.service:
            assert all(f"### {method.name}\n" in text for method in service.method)
    audit = (tmp_path / "api" / "audit.md").read_text()
    assert "Reads the audit trail; nothing here changes anything." in audit
    assert "| `actor` | string | 4 | Who made it: role and identity. |" in audit
    assert "Lists records by number" in audit
    assert "[ListAuditRecordsResponse](audit.md#listauditrecordsresponse)" in audit
