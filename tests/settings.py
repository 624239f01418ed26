"""Settings of the tests: production's, over a folder that goes away."""

import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="footplate-tests-")
os.environ["FOOTPLATE_HOME"] = _home.name
os.mkdir(os.path.join(_home.name, "static"))
for name in ("REDIS_URL", "DATABASE_URL", "HOST", "PORT", "SECRET_KEY"):
    os.environ.pop(name, None)
if url := os.environ.get("TESTS_DATABASE_URL"):
    os.environ["DATABASE_URL"] = url

from serving.config.settings import *  # noqa: E402, F403

# A file, as in production: a database in memory has other locks, and the threads of a test could not share it.
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # noqa: F405
    DATABASES["default"]["TEST"] = {"NAME": os.path.join(_home.name, "test.sqlite3")}  # noqa: F405

# Pages are tested without collecting what browsers load; tests/config/test_static_files.py collects it.
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}  # noqa: F405

# Real passwords are slow to check on purpose; those of tests protect nothing.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
