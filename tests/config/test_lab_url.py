"""Where containers' Lab reaches their web processes: compose, and the door that is asked by that name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from serving.lab.runs.services import own_url

COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.yml"


def service(name: str) -> str:
    """What compose says of a service, without its indentation."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, name
    return re.sub("^    ", "", found[1], flags=re.MULTILINE)


def test_the_labs_container_asks_the_web_container_at_its_port() -> None:
    lab = service("lab")
    found = re.search(r"^  FOOTPLATE_LAB_URL: http://(\w+):(\d+)$", lab, re.MULTILINE)
    assert found is not None
    assert '\ncommand: ["runjobs", "--queue", "lab"]\n' in lab
    web = service(found[1])
    assert '\ncommand: ["runweb"]\n' in web
    assert "\n  HOST: 0.0.0.0\n" in web
    assert f'\n  PORT: "{found[2]}"\n' in web
    allowed = re.search(r"^  ALLOWED_HOSTS: \S+?(?:,|})(\w+)$", COMPOSE.read_text(encoding="utf-8"), re.MULTILINE)
    assert allowed is not None
    assert allowed[1] == found[1]


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")],
)
def test_elsewhere_it_asks_this_machine(settings: Any, host: str, url: str) -> None:
    settings.FOOTPLATE_LAB_URL, settings.HOST, settings.PORT = "", host, 8000
    assert own_url() == url
    settings.FOOTPLATE_LAB_URL = "http://web:8000"
    assert own_url() == "http://web:8000"
