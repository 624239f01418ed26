"""What a first start sets up, and what every start makes sure of. Each step does nothing where it was done before."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import Error as DatabaseError
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor

from dashboard.roles import ensure_roles
from serving.admission.keys import SCOPES
from serving.admission.services import create_key
from serving.admission.tenants import ensure_tenant
from serving.audit.services import record
from serving.config import static_files
from serving.config.frontend import Frontend
from serving.config.home import StartProblem, keep_secret, locked_home
from serving.config.pools import PoolSettings
from serving.config.processes import signal_group, start_child
from serving.contracts.actors import Actor
from serving.contracts.messages import MAX_PRIORITY
from serving.tuning.services import ensure_pool, leave_out_others

logger = logging.getLogger(__name__)

OPERATOR = "operator"
FIRST_TENANT = "default"
FIRST_START = Actor("first start", "system")
"""Whose doing the first accounts are, for the audit."""
DEFAULT_MODEL = "SmolLM2-135M-Instruct"


def first_run_file() -> Path:
    """Where the first start leaves address and credentials, for its owner's eyes only."""
    return Path(settings.FOOTPLATE_HOME) / "first-run.json"


def pools_to_import_for() -> list[PoolSettings]:
    """The pools that serve the default model while it is yet to be imported.

    Raises `StartProblem` where a pool's model is missing that cannot be imported by itself.
    """
    missing = [pool for pool in _pools() if not (pool.model / "config.json").is_file()]
    for pool in missing:
        if pool.model != settings.FOOTPLATE_HOME / "models" / DEFAULT_MODEL:
            folder = f"the model of pool {pool.name}, {pool.model}, is no model folder (no config.json in it)"
            raise StartProblem(f"{folder}; see FOOTPLATE_MODEL and FOOTPLATE_POOLS")
    return missing


def _pools() -> list[PoolSettings]:
    return list(settings.FOOTPLATE_POOLS.values())


def import_default_model() -> None:
    """Fetch and convert the default model in a process of its own, which is what pays for torch."""
    log: Path = settings.FOOTPLATE_HOME / "logs" / "importmodel.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "importmodel"]
    with log.open("wb") as output:
        process = start_child(command, environment=os.environ, output=output)
        try:
            status = process.wait()
        except BaseException:
            signal_group(process, signal.SIGKILL)
            process.wait()
            raise
    if status != 0 or pools_to_import_for():
        lines = log.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
        raise StartProblem(f"the default model could not be imported: {lines[-1].strip()} (more in {log})")


def prepare(report: Callable[[str], None]) -> None:
    """What the processes of a deployment need before they start; operator and keys are left to the deployer."""
    with locked_home() as home:
        to_import_for = pools_to_import_for()
        prepare_database(report, with_accounts=False)
        home.keep()
        collect_static_files()
        if to_import_for:
            report(f"importing the default model, {DEFAULT_MODEL}")
            import_default_model()


def prepare_database(report: Callable[[str], None], *, with_accounts: bool) -> bool:
    """Keep the secret, migrate, make the pools and the console's roles and, `with_accounts` and on the first start,
    operator, tenant and key.

    Returns whether the accounts were made. Raises `StartProblem` where the database cannot be reached. Leaves no
    connection open.
    """
    try:
        keep_secret()
        _probe_database()
        _migrate(report)
        for pool in _pools():
            ensure_pool(pool.name, pool.model.name)
        for name in leave_out_others([pool.name for pool in _pools()]):
            report(f"pool {name} is no longer configured: its past stays, and nothing can be done to it")
        ensure_roles()
        return with_accounts and _make_first_accounts()
    except DatabaseError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartProblem(f"the database does not answer ({reason}); see DATABASE_URL") from None
    except OSError as error:
        raise StartProblem(f"FOOTPLATE_HOME {settings.FOOTPLATE_HOME} cannot be written ({error.strerror})") from None
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()
            if hasattr(connection, "close_pool"):
                connection.close_pool()


def settle_database() -> None:
    """Have SQLite put into its file what is only in its log yet, so that a copy of the file has all. Where nobody else
    has it open, the log goes. Any other database, or one that is busy, is left as it is."""
    connection = connections["default"]
    if connection.vendor != "sqlite" or not Path(connection.settings_dict["NAME"]).exists():
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except DatabaseError as error:
        logger.warning("the log of %s is left beside it: %s", connection.settings_dict["NAME"], error)
    finally:
        connection.close()


def collect_static_files() -> None:
    """Copy what browsers load to where it is served from. Raises `StartProblem` where a part of it is missing."""
    if missing := Frontend(settings.BASE_DIR).missing_files():
        raise StartProblem(f"static/vendor has no {missing[0]}; `make serve` installs what the console's pages load")
    try:
        static_files.collect()
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartProblem(f"what browsers load cannot be put in {settings.STATIC_ROOT} ({reason})") from None


def console_url(host: str, port: int) -> str:
    """Where the console is, as seen from this machine."""
    return f"{base_url(host, port)}/console/"


def base_url(host: str, port: int) -> str:
    """Address of the web process as seen from this machine."""
    local = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a name, not a bind
    return f"http://{f'[{local}]' if ':' in local else local}:{port}"


def _probe_database() -> None:
    """Connect once without the pool, which would try for ten seconds, fill the terminal and hide the reason."""
    probe = connections["default"].copy()
    options = probe.settings_dict["OPTIONS"]
    if options.pop("pool", None) is not None:
        options.setdefault("connect_timeout", 5)
    try:
        probe.ensure_connection()
    finally:
        probe.close()


def _migrate(report: Callable[[str], None]) -> None:
    executor = MigrationExecutor(connections["default"])
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        report("preparing the database")
        call_command("migrate", interactive=False, verbosity=0)


def _make_first_accounts() -> bool:
    users = get_user_model().objects
    # Also where `createuser` made all there are: an operator of that name is somebody, and stays.
    if users.exists():
        return False
    password = secrets.token_urlsafe(18)
    # The file is written before the transaction ends: a crash in between leaves a file that the next start replaces,
    # never an operator whose password nobody knows.
    with transaction.atomic():
        users.create_superuser(OPERATOR, password=password)
        record(
            "user made", actor=FIRST_START, subject_kind="user", subject=OPERATOR, changes={"role": [None, "superuser"]}
        )
        ensure_tenant(FIRST_TENANT, author=FIRST_START, most_urgent=-MAX_PRIORITY)
        key = create_key(FIRST_TENANT, label="first key", scopes=SCOPES, author=FIRST_START)
        _write_privately(
            first_run_file(),
            {
                "console_url": console_url(settings.HOST, settings.PORT),
                "username": OPERATOR,
                "password": password,
                "api_key": key.text,
            },
        )
    return True


def _write_privately(path: Path, content: dict[str, str]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
