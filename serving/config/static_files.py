"""How files that browsers load are named and kept: a hash of the content in every name, so that they never go stale."""

from __future__ import annotations

import hashlib
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from whitenoise.storage import CompressedManifestStaticFilesStorage

_JS_IMPORTS = (
    "*.js",
    (
        (
            r"""(?m)^(?P<matched>(?P<statement>import\s*|(?:import|export)\b[^'"`();=]*?\bfrom\s*)"""
            r"""["'](?P<url>\.{0,2}/[^"'\n]+)["'])""",
            '%(statement)s"%(url)s"',
        ),
        (
            r"""(?P<matched>\bawait\s+import\(\s*["'](?P<url>\.{0,2}/[^"'\n]+)["']\s*\))""",
            'await import("%(url)s")',
        ),
    ),
)
"""Statements at the start of a line, and awaited dynamic imports. Django's own patterns (its option
support_js_module_import_aggregation) match comments as well, where JSDoc names types of modules that import one
another: a circle of hashes that has no end."""
_STAMP = ".collected"


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Static files under STATIC_ROOT, each also under a name with its hash and compressed.

    Modules import, and stylesheets name, the hashed files. Files of earlier versions stay, for pages that are open.
    """

    patterns = (*CompressedManifestStaticFilesStorage.patterns, _JS_IMPORTS)
    max_post_process_passes = 20  # each settles the hashes of one more level of imports
    keep_intermediate_files = False

    def get_modified_time(self, name: str) -> datetime:
        """Never known, so that every file is copied: an older release's may be older than what it is to replace."""
        raise NotImplementedError


def collect() -> None:
    """Copy what browsers load to STATIC_ROOT; nothing where the same files were collected before, since that costs a
    second. Raises `OSError` where it cannot be written, `ValueError` or `RuntimeError` where a file names one that
    is missing, or itself by way of others."""
    root = Path(settings.STATIC_ROOT)
    stamp, wanted = root / _STAMP, _fingerprint()
    is_whole = (root / HashedStaticFiles.manifest_name).is_file() and stamp.is_file()
    if is_whole and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    call_command("collectstatic", interactive=False, verbosity=0)
    stamp.write_text(wanted)


def _fingerprint() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(f"{version('django')} {version('whitenoise')}".encode())
    for finder in get_finders():
        for name, storage in sorted(finder.list([]), key=lambda found: found[0]):
            found = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
