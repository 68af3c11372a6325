"""What pip was told reaches uv; every package of a lock file is pinned by a hash."""

import re

import pytest
import setup_venv
from book.notebooks import ROOT

LISTED = """\
:env:.default-timeout='9'
global.cert='/etc/ca.pem'
global.extra-index-url='https://one.example/simple file:///two'
global.find-links='/a /b'
install.find-links='/wheels /more'
"""


def test_what_pip_was_told_is_handed_on_to_uv():
    environ = {"PIP_DEFAULT_TIMEOUT": "9", "UV_INDEX": "its own", "OTHER": "1"}
    assert setup_venv.uv_environment(LISTED, environ) == environ | {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "9",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert setup_venv.uv_environment("", {"OTHER": "1"}) == {"OTHER": "1"}


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-torch.lock"])
def test_a_lock_has_hashes_and_names_no_machine(lock):
    text = (ROOT / lock).read_text()
    torch, rest = setup_venv.split_lock(text)
    for pin in torch + rest:
        assert re.match(r"[\w.-]+==\S+", pin) and "--hash=sha256:" in pin, pin
    assert len(torch) > 10 and any(pin.startswith("torch==") for pin in torch)
    assert any(pin.startswith("uv==") for pin in rest)
    assert "://" not in text


@pytest.mark.parametrize("kind", ["", "-torch"])
def test_a_lock_holds_what_its_requirements_ask_for(kind):
    wanted = "".join(
        (ROOT / f"requirements{name}.txt").read_text() for name in ("-common", kind)
    )
    lock = (ROOT / f"requirements{kind}.lock").read_text()
    for pin in re.findall(r"^[\w.-]+==[\w.]+", wanted, re.M):
        assert re.search(rf"^{re.escape(pin)}\b", lock, re.M), f"{pin}: run make lock"
