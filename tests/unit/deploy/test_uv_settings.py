"""uv gets the settings for indexes and certificates that pip has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("deploy_uv", ROOT / "deploy" / "uv.py")
assert spec is not None
assert spec.loader is not None
uv = importlib.util.module_from_spec(spec)
spec.loader.exec_module(uv)


def test_every_place_that_pip_knows_is_told() -> None:
    """Values are quoted as in `pip config list`, and one key may have several, a line each."""
    listed = [
        ":env:.find-links='/opt/wheels'",
        "global.cert='/etc/ca.pem'",
        "global.extra-index-url='\\nhttps://a.example/simple\\nfile:///b/simple'",
        "global.index-url='https://index.example/simple'",
        "global.trusted-host='index.example'",
    ]
    assert uv.variables(listed) == {
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_FIND_LINKS": "/opt/wheels",
        "UV_INDEX": "https://a.example/simple file:///b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "index.example",
    }


def test_the_environment_is_stronger_than_a_file_and_install_than_global() -> None:
    """The order of precedence is that of pip."""
    listed = [
        ":env:.timeout='3'",
        "global.index-url='https://one.example/'",
        "global.timeout='1'",
        "install.index-url='https://two.example/'",
        "install.timeout='2'",
    ]
    told = uv.variables(listed)
    assert (told["UV_HTTP_TIMEOUT"], told["UV_DEFAULT_INDEX"]) == ("3", "https://two.example/")


def test_who_told_pip_nothing_tells_uv_nothing() -> None:
    """Settings of pip's other commands are not passed on."""
    assert uv.variables([]) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    assert uv.variables(["freeze.timeout='10'"]) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
