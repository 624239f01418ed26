"""Settings of the tests: production's, over a folder that goes away."""

import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="footplate-tests-")
os.environ["FOOTPLATE_HOME"] = _home.name
for name in ("REDIS_URL", "DATABASE_URL", "HOST", "PORT", "SECRET_KEY"):
    os.environ.pop(name, None)

from serving.config.settings import *  # noqa: E402, F403
