"""Build the site of the documentation: `.ci/docs.py FOLDER` (build/docs if not given).

The pages are those of the repository. They are copied below FOLDER, with a reference made from the
comments of proto/heddle/v1 and with pictures of the web page, and Sphinx makes a site of them.
Links to files that are not pages of the site lead to a copy of the file. Links to folders without a
page become plain text. The build fails at any warning of Sphinx, any link or anchor of the site
that leads nowhere, and any page that loads something from elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<to>[^()\s]+)\)")
OPENING = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">'
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


def tracked() -> list[Path]:
    """Return the pages of the repository."""
    told = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "*.md", "docs"],  # noqa: S607 - the one of the path
        check=True,
        capture_output=True,
        text=True,
    )
    return [Path(line) for line in told.stdout.splitlines()]


def lay_out(pages: list[Path], target: Path) -> None:
    """Copy pages to the same places below ``target``, with the files that they link to."""
    for page in pages:
        text = (ROOT / page).read_text("utf-8")
        made = target / page
        made.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            text = LINK.sub(partial(led, page=page, pages=pages, target=target), text)
        made.write_text(text, "utf-8")


def led(link: re.Match[str], page: Path, pages: list[Path], target: Path) -> str:
    """Return a link as it is on the site, and copy the file that it leads to."""
    path = urlsplit(link["to"]).path
    if "://" in link["to"] or not path:
        return link[0]
    inner = Path(os.path.normpath(page.parent / unquote(path)))
    if inner in pages or inner.parts[0] in ("pictures", "api"):
        return link[0]
    there = ROOT / inner
    if there.is_dir():
        readme = inner / "README.md"
        return (
            f"{link['text']}({path.rstrip('/')}/README.md)"
            if readme in pages
            else f"{link['text'][1:-1]}"
        )
    if not there.is_file():
        sys.exit(f"{page}: {link['to']} leads nowhere")
    (target / inner).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(there, target / inner)
    return link[0]


def described() -> list[FileDescriptorProto]:
    """Return the files of heddle.v1 with their comments."""
    spec = find_spec("google.rpc.status_pb2")
    if spec is None or spec.origin is None:
        sys.exit("googleapis-common-protos is not installed: run make setup")
    source = ROOT / "proto"
    protos = [path.relative_to(source).as_posix() for path in source.glob("heddle/v1/*.proto")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"-I{source}"),
                *(f"-I{Path(spec.origin).parents[2]}", "--include_source_info"),
                *(f"--descriptor_set_out={out}", *sorted(protos)),
            ],
            check=True,
        )
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


class Reference:
    """The reference page of one .proto file."""

    def __init__(self, file: FileDescriptorProto, homes: dict[str, str]) -> None:
        self._file = file
        self._homes = homes
        places = file.source_code_info.location
        self._comments = {tuple(p.path): p.leading_comments.strip() for p in places}
        detached = [text for p in places for text in p.leading_detached_comments]
        syntax = self._comments.get((12,), "")
        self._opening = syntax or (detached[0].strip() if detached else "")

    def text(self) -> str:
        """Return the page in Markdown."""
        lines = [f"# {Path(self._file.name).name}", "", self._opening, ""]
        for number, service in enumerate(self._file.service):
            lines += [f"## {service.name}", "", self._said(6, number), ""]
            for at, method in enumerate(service.method):
                asked = self._linked(method.input_type, many=method.client_streaming)
                told = self._linked(method.output_type, many=method.server_streaming)
                lines += [f"### {method.name}", "", self._said(6, number, 2, at), ""]
                lines += [f"{asked} → {told}", ""]
        for number, message in enumerate(self._file.message_type):
            lines += self._message(message, message.name, (4, number))
        for number, enum in enumerate(self._file.enum_type):
            lines += self._enum(enum, enum.name, (5, number))
        return "\n".join(lines).rstrip() + "\n"

    def _said(self, *path: int) -> str:
        return (
            re.sub(r"\s+", " ", self._comments.get(path, ""))
            .replace("<", "&lt;")
            .replace("*", "\\*")
        )

    def _message(self, message: DescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        if message.options.map_entry:
            return
        yield from (f"## {name}", "", self._said(*path), "")
        if message.field:
            yield from ("| field | type | number | |", "|---|---|---|---|")
        for at, field in enumerate(message.field):
            said = self._said(*path, 2, at).replace("|", "\\|")
            yield f"| `{field.name}` | {self._type(field)} | {field.number} | {said} |"
        yield ""
        for at, inner in enumerate(message.nested_type):
            yield from self._message(inner, f"{name}.{inner.name}", (*path, 3, at))
        for at, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*path, 4, at))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield from (f"## {name}", "", self._said(*path), "")
        yield from ("| value | number | |", "|---|---|---|")
        for at, value in enumerate(enum.value):
            said = self._said(*path, 2, at).replace("|", "\\|")
            yield f"| `{value.name}` | {value.number} | {said} |"
        yield ""

    def _type(self, field: FieldDescriptorProto) -> str:
        many = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
        if field.type_name:
            return many + self._linked(field.type_name)
        return many + FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()

    def _linked(self, full: str, *, many: bool = False) -> str:
        name, stream = full.removeprefix(".heddle.v1."), "stream of " if many else ""
        if name == full or name not in self._homes:
            return f"{stream}`{full.lstrip('.')}`"
        return f"{stream}[{name}]({self._homes[name]}.md#{name.replace('.', '').lower()})"


def names(message: DescriptorProto, above: str = "") -> Iterator[str]:
    """Yield the names of a message, its enums and its nested messages."""
    if message.options.map_entry:
        return
    yield f"{above}{message.name}"
    yield from (f"{above}{message.name}.{enum.name}" for enum in message.enum_type)
    for inner in message.nested_type:
        yield from names(inner, f"{above}{message.name}.")


def write_reference(target: Path) -> None:
    """Write a page for each .proto file."""
    files = described()
    homes: dict[str, str] = {}
    for file in files:
        for message in file.message_type:
            homes |= dict.fromkeys(names(message), Path(file.name).stem)
        homes |= {enum.name: Path(file.name).stem for enum in file.enum_type}
    target.mkdir(parents=True)
    for file in files:
        page = target / f"{Path(file.name).stem}.md"
        page.write_text(Reference(file, homes).text(), "utf-8")


class Links(HTMLParser):
    """The links of a page, what it loads, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and anchors of a tag."""
        told = {key: value or "" for key, value in attrs}
        self.places |= {told[key] for key in ("id", "name") if key in told}
        if tag == "a" and "href" in told:
            self.to.append(told["href"])
        if (
            tag in LOADED
            and LOADED[tag] in told
            and told.get("rel") not in ("index", "search", "next", "prev")
        ):
            self.loaded.append(told[LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    """Yield links that lead nowhere, and what is loaded from elsewhere."""
    pages = {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        shown = path.relative_to(site)
        for link in [*page.to, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    yield f"{shown} loads {link}"
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.exists():
                yield f"{shown}: {link} leads nowhere"
            elif (
                parts.fragment
                and there in pages
                and unquote(parts.fragment) not in pages[there].places
            ):
                yield f"{shown}: {link} leads to no place of that page"
    for style in site.rglob("*.css"):
        for url in re.findall(
            r"url\(['\"]?(https?:[^)]+)\)|@import\s+['\"]?(https?:[^'\";\s)]+)",
            style.read_text("utf-8"),
        ):
            yield f"{style.relative_to(site)} loads {''.join(url)}"


def main() -> int:
    """Build the site; return 1 if anything is wrong."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()
    shutil.rmtree(out, ignore_errors=True)
    source, site = out / "source", out / "site"
    lay_out(tracked(), source)
    write_reference(source / "api")
    drawn = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/docs"], cwd=ROOT, check=False,
        env={**os.environ, "HEDDLE_PICTURES": str(source / "pictures"), "CI": "true"},
    )  # fmt: skip
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "-c",
         source / "docs", source, site], check=False,
    )  # fmt: skip
    (site / "index.html").write_text(OPENING, "utf-8")
    found = list(faults(site))
    sys.stderr.write("".join(f"{fault}\n" for fault in found))
    if drawn.returncode or built.returncode or found:
        return 1
    print(f"the site is in {site}: {len(list(site.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
