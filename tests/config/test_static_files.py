"""Names of collected static files: what modules and stylesheets refer to, for how long browsers keep it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import override_settings
from httpx import Response

from serving.config import bootstrap, static_files
from serving.config.home import StartProblem
from serving.config.static_server import StaticFiles

pytestmark = pytest.mark.waits

STORAGES = settings.STORAGES | {"staticfiles": {"BACKEND": "serving.config.static_files.HashedStaticFiles"}}
OWN_TREE = "django.contrib.staticfiles.finders.FileSystemFinder"
HASHED = re.compile(r"\.[0-9a-f]{12}\.\w+$")
COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*?$", re.DOTALL | re.MULTILINE)
REFERENCE = re.compile(r"""(?<!["'])\bfrom\s*["'](.+?)["']|\bimport\s*\(?\s*["'](.+?)["']""")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder of static files."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path, source: Path) -> Iterator[Path]:
    """The folder that `source` is collected to."""
    root = tmp_path / "root"
    with override_settings(
        STATIC_ROOT=root, STATICFILES_DIRS=[source], STATICFILES_FINDERS=[OWN_TREE], STORAGES=STORAGES
    ):
        yield root


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Everything that Footplate serves, collected."""
    root = tmp_path_factory.mktemp("collected")
    with override_settings(STATIC_ROOT=root, STORAGES=STORAGES):
        bootstrap.collect_static_files()
        yield root


def manifest(root: Path) -> dict[str, str]:
    return dict(json.loads((root / "staticfiles.json").read_text())["paths"])


def collect(root: Path, source: Path, files: dict[str, str]) -> dict[str, str]:
    """Write `files`, collect them, and return each one's hashed content."""
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    static_files.collect()
    return {name: (root / hashed).read_text() for name, hashed in manifest(root).items()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import { a } from './part.js';", 'import { a } from "./PART";'),
        ('import { a } from "./part.js"', 'import { a } from "./PART"'),
        ("import {\n  a,\n  b,\n} from './part.js';", 'import {\n  a,\n  b,\n} from "./PART";'),
        ("import * as part from './part.js';", 'import * as part from "./PART";'),
        ("import part from './part.js';", 'import part from "./PART";'),
        ("import './part.js';", 'import "./PART";'),
        ("export { a } from './part.js';", 'export { a } from "./PART";'),
        ("export * from './part.js';", 'export * from "./PART";'),
        ("const part = await import('./part.js');", 'const part = await import("./PART");'),
    ],
)
def test_a_module_imports_the_hashed_name(root: Path, source: Path, before: str, after: str) -> None:
    texts = collect(root, source, {"page.js": f"{before}\nrun();\n", "part.js": "export const a = 1, b = 2;\n"})
    assert texts["page.js"] == after.replace("PART", manifest(root)["part.js"]) + "\nrun();\n"


@pytest.mark.parametrize(
    "text",
    [
        "/** @type {import('./part.js').Part} */\nlet part;",
        "/**\n * @import {Part} from './part.js'\n */",
        "const a = Array.from('./part.js');",
        "export const note = 'taken from', b = \"./part.js\";",
        "// import './part.js';",
    ],
)
def test_what_only_looks_like_an_import_stays_as_it_is(root: Path, source: Path, text: str) -> None:
    assert collect(root, source, {"page.js": text, "part.js": "export {};"})["page.js"] == text


def test_modules_may_name_each_others_types(root: Path, source: Path) -> None:
    texts = collect(
        root,
        source,
        {
            "state.js": "/** @typedef {import('./store.js').Store} Store */\nexport const state = {};\n",
            "store.js": "import { state } from './state.js';\n/** @typedef {typeof state} Store */\n",
        },
    )
    assert manifest(root)["state.js"] in texts["store.js"]


def test_a_change_deep_down_renames_every_module_above_it(root: Path, source: Path) -> None:
    chain = {f"level{n}.js": f"import './level{n + 1}.js';\n" for n in range(12)}
    collect(root, source, chain | {"level12.js": "run(1);\n"})
    before = manifest(root)
    collect(root, source, {"level12.js": "run(2);  // longer\n"})
    after = manifest(root)
    assert all(before[name] != after[name] for name in before)
    assert [name for name in before.values() if not (root / name).is_file()] == [], "a page that is open loads these"


def test_a_stylesheet_names_hashed_files(root: Path, source: Path) -> None:
    texts = collect(
        root, source, {"css/page.css": "a{background:url('../icon.svg')}", "icon.svg": "<svg xmlns='x'></svg>"}
    )
    assert texts["css/page.css"] == f'a{{background:url("../{manifest(root)["icon.svg"]}")}}'


def test_collects_again_only_when_a_file_has_changed(root: Path, source: Path) -> None:
    collect(root, source, {"page.js": "run(1);\n"})
    (root / "page.js").unlink()
    static_files.collect()
    assert not (root / "page.js").exists(), "nothing was to be done"
    collect(root, source, {"page.js": "run(1); run(2);\n"})
    assert (root / "page.js").exists()


def test_collects_again_after_the_folder_was_emptied(root: Path, source: Path) -> None:
    collect(root, source, {"page.js": "run(1);\n"})
    (root / "staticfiles.json").unlink()
    static_files.collect()
    assert manifest(root).keys() == {"page.js"}


async def fetch(application: StaticFiles, name: str, *, method: str = "GET", **headers: str) -> Response:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/static/") as client:
        return await client.request(
            method, name, headers={key.replace("_", "-"): text for key, text in headers.items()}
        )


async def test_browsers_keep_hashed_files_for_good_and_others_briefly(root: Path, source: Path) -> None:
    collect(root, source, {"page.js": "run(1);\n" * 100})
    name, files = manifest(root)["page.js"], StaticFiles()
    kept = await fetch(files, name, accept_encoding="gzip")
    assert kept.headers["Cache-Control"] == "max-age=315360000, public, immutable"
    assert kept.headers["Content-Encoding"] == "gzip"
    assert kept.text == (await fetch(files, "page.js", accept_encoding="identity")).text == "run(1);\n" * 100
    assert (await fetch(files, "page.js")).headers["Cache-Control"] == "max-age=60, public"


async def test_files_are_served_as_http_wants_it(root: Path, source: Path) -> None:
    collect(root, source, {"page.js": "0123456789"})
    files = StaticFiles()
    whole = await fetch(files, "page.js", accept_encoding="identity")
    assert (whole.status_code, whole.headers["Content-Type"]) == (200, 'text/javascript; charset="utf-8"')
    again = await fetch(files, "page.js", if_none_match=whole.headers["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    part = await fetch(files, "page.js", range="bytes=2-4", accept_encoding="identity")
    assert (part.status_code, part.text) == (206, "234")
    head = await fetch(files, "page.js", method="HEAD")
    assert (head.status_code, head.content, head.headers["Content-Length"]) == (200, b"", "10")
    assert (await fetch(files, "page.js", method="POST")).status_code == 405
    for missing in ("none.js", "../footplate.sqlite3", "%2e%2e/footplate.sqlite3", ""):
        assert (await fetch(files, missing)).status_code == 404


def test_a_reference_to_a_missing_file_is_one_line_for_the_operator(root: Path, source: Path) -> None:
    (source / "page.js").write_text("import './gone.js';\n")
    with pytest.raises(StartProblem, match=r"gone\.js") as problem:
        bootstrap.collect_static_files()
    assert "\n" not in str(problem.value)


def test_missing_packages_are_one_line_that_says_what_installs_them(tmp_path: Path) -> None:
    with override_settings(BASE_DIR=tmp_path), pytest.raises(StartProblem, match=r"chart\.umd\.js; `make serve`"):
        bootstrap.collect_static_files()


def test_every_import_of_the_consoles_modules_is_a_hashed_file(collected: Path) -> None:
    modules = [name for name in manifest(collected).values() if name.startswith("dashboard/") and name.endswith(".js")]
    references = [
        (name, reference)
        for name in modules
        for found in REFERENCE.finditer(COMMENT.sub("", (collected / name).read_text()))
        if (reference := found[1] or found[2])
    ]
    assert len(references) >= len(modules) > 1
    for name, reference in references:
        assert HASHED.search(reference), f"{name} imports {reference}"
        assert (collected / name).parent.joinpath(reference).is_file(), f"{name} imports {reference}"


def test_every_static_file_that_a_template_names_is_there(collected: Path) -> None:
    templates = (settings.BASE_DIR / "templates").rglob("*.html")
    names = {name for path in templates for name in re.findall(r"""{% static ['"](.+?)['"]""", path.read_text())}
    assert names, "templates name static files"
    assert [name for name in sorted(names) if finders.find(name) is None] == []
    assert names <= manifest(collected).keys()
