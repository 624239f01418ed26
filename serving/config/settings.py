"""Django's settings, and Footplate's: what is fixed at start. What changes live is a tunable (serving.contracts)."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url

from serving.config.env import EnvironmentProblem, embedded_socket, process_environment, read_secret
from serving.config.pools import read_own_pool, read_pools

_env = process_environment()
BASE_DIR = Path(__file__).resolve().parent.parent.parent

# --- Footplate -----------------------------------------------------------------------------------------------------

FOOTPLATE_HOME = _env.folder("FOOTPLATE_HOME", BASE_DIR / "var")
"""State: database, Valkey, models, logs."""
HOST = _env.text("HOST", "127.0.0.1")
PORT = _env.integer("PORT", 8000, low=1, high=65_535)

FOOTPLATE_POOLS = read_pools(_env, default_model=FOOTPLATE_HOME / "models" / "SmolLM2-135M-Instruct")
"""The pools by name. The first is the one that commands mean where none is named."""
FOOTPLATE_POOL = read_own_pool(_env, FOOTPLATE_POOLS)
"""The pool that an engine of this process joins."""
# Read when PyTorch is loaded. Its threads would otherwise stay awake for milliseconds after each operation, on cores
# that the kernels' threads and other processes need; this is enough from one operation to the next.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
FOOTPLATE_MAX_BODY_BYTES = _env.integer("FOOTPLATE_MAX_BODY_BYTES", 2_097_152, low=1024, high=2**31)
FOOTPLATE_HEADER_HOLD_SECONDS = _env.number("FOOTPLATE_HEADER_HOLD_SECONDS", 10.0, low=0, high=3600)
"""How long a stream's HTTP headers wait for the request's first scheduling; later failures are error events."""
FOOTPLATE_DRAIN_SECONDS = _env.number("FOOTPLATE_DRAIN_SECONDS", 30.0, low=0, high=3600)
"""How long a process that was told to stop lets running requests go on."""
FOOTPLATE_FAILOVER_SECONDS = _env.number("FOOTPLATE_FAILOVER_SECONDS", 60.0, low=1, high=3600)
"""How long a request whose engine died waits for another before it fails."""
FOOTPLATE_WEBHOOK_HOSTS = frozenset(host.lower() for host in _env.words("FOOTPLATE_WEBHOOK_HOSTS", ""))
"""Whom alerts may be posted to: hosts, or hosts with a port. None unless whoever runs this machine names them."""
FOOTPLATE_LOADTEST_HOSTS = frozenset(host.lower() for host in _env.words("FOOTPLATE_LOADTEST_HOSTS", ""))
"""Which servers but this one the console may load-test: hosts, or hosts with a port. None unless they are named."""
FOOTPLATE_LAB_URL = _env.text("FOOTPLATE_LAB_URL", "")
"""Where the Lab reaches the web processes; empty: where HOST and PORT say, on this machine."""
FOOTPLATE_OTLP_ENDPOINT = _env.text("FOOTPLATE_OTLP_ENDPOINT", "")
"""Where a collector takes traces over OTLP and HTTP; empty: none are made."""
FOOTPLATE_ROLLUPS_KEPT = {
    10: timedelta(hours=_env.integer("FOOTPLATE_KEEP_10_S_HOURS", 6, low=1, high=24 * 31)),
    60: timedelta(days=_env.integer("FOOTPLATE_KEEP_1_MIN_DAYS", 3, low=1, high=366)),
    600: timedelta(days=_env.integer("FOOTPLATE_KEEP_10_MIN_DAYS", 30, low=1, high=3660)),
    3600: timedelta(days=_env.integer("FOOTPLATE_KEEP_1_H_DAYS", 400, low=1, high=3660)),
}
"""How long what was measured is kept, by the seconds of the stretches of time in which it is summed up."""

FOOTPLATE_REQUEST_LOG_DAYS = _env.integer("FOOTPLATE_REQUEST_LOG_DAYS", 30, low=0, high=3660)
"""How long the log of requests goes back; 0 keeps none."""
FOOTPLATE_TEXT_DAYS = _env.integer("FOOTPLATE_TEXT_DAYS", 7, low=0, high=3660)
"""How long prompts and answers are kept of tenants that let them be; 0 keeps none."""
FOOTPLATE_RUNS_DAYS = _env.integer("FOOTPLATE_RUNS_DAYS", 365, low=1, high=3660)
"""How long the Lab keeps runs and experiments that are over."""
FOOTPLATE_RESTARTS = _env.optional_integer("FOOTPLATE_RESTARTS", low=0, high=2**31)
"""How often this process was started again before, as whatever supervises it says; None where nobody counts."""

# --- Django --------------------------------------------------------------------------------------------------------

DEBUG = _env.flag("FOOTPLATE_DEBUG", default=False)
SECRET_KEY_FILE = None if _env.text("SECRET_KEY", "") else FOOTPLATE_HOME / "secret_key"
"""Where the first start keeps the secret that nobody has set. Until then each process has one of its own, so that
looking at settings makes no file."""
try:
    SECRET_KEY = _env.text("SECRET_KEY", "") if SECRET_KEY_FILE is None else read_secret(SECRET_KEY_FILE)
except OSError as _error:
    raise EnvironmentProblem(
        "FOOTPLATE_HOME", str(FOOTPLATE_HOME), f"a folder that can be written ({_error.strerror})"
    ) from None
ALLOWED_HOSTS = _env.words("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]," + HOST)
CSRF_TRUSTED_ORIGINS = _env.words("CSRF_TRUSTED_ORIGINS", "")

INSTALLED_APPS = [
    "daphne",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "ninja",
    "serving",
    "serving.audit",
    "serving.admission",
    "serving.tuning",
    "serving.telemetry",
    "serving.lab",
    "dashboard",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dashboard.middleware.utf8_forms",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.middleware.users_in_threads",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.middleware.content_security_policy",
    "dashboard.middleware.compressed",
    "dashboard.middleware.problem_pages",
]
ROOT_URLCONF = "serving.config.urls"
ASGI_APPLICATION = "serving.config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
STATIC_ROOT = FOOTPLATE_HOME / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "serving.config.static_files.HashedStaticFiles"},
}
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = False
LOGIN_URL = "/console/login/"
LOGIN_REDIRECT_URL = "/console/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
DATA_UPLOAD_MAX_MEMORY_SIZE = FOOTPLATE_MAX_BODY_BYTES

# Behind TLS the operator says so; on loopback, plain HTTP is the way in.
_tls = _env.flag("FOOTPLATE_TLS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = _tls
SECURE_HSTS_SECONDS = 31_536_000 if _tls else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _tls
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _tls else None
AUTHENTICATION_BACKENDS = ["dashboard.backends.ConsoleBackend"]
SESSION_ENGINE = "dashboard.session_store"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"

# --- Database ------------------------------------------------------------------------------------------------------


def _database(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        config: dict[str, Any] = dict(dj_database_url.parse(url))
        # A transaction that reads first and writes later fails at once when another wrote meanwhile, whatever the
        # timeout; taken for writing from its start, it waits instead.
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
        return config
    config = dict(dj_database_url.parse(url))
    config["OPTIONS"] = {**config.get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": 8, "timeout": 10}}
    return config


DATABASES = {"default": _database(_env.text("DATABASE_URL", f"sqlite:///{FOOTPLATE_HOME / 'footplate.sqlite3'}"))}

# --- Redis ---------------------------------------------------------------------------------------------------------

_given_redis_url = _env.text("REDIS_URL", "")
EMBEDDED_VALKEY = not _given_redis_url
"""Whether `serve` starts a Valkey of its own."""
EMBEDDED_VALKEY_SOCKET = embedded_socket(FOOTPLATE_HOME)
REDIS_URL = _given_redis_url or f"unix://{EMBEDDED_VALKEY_SOCKET}"
# Over publish and subscribe: what a killed process leaves behind is nothing.
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [{"address": REDIS_URL, "socket_timeout": 5, "socket_connect_timeout": 2}],
            "prefix": "footplate:channels:",
        },
    }
}

# --- Celery (read with the prefix CELERY_) -------------------------------------------------------------------------

CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "footplate:celery:", "visibility_timeout": 3600}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ROUTES = {"lab.work_off": {"queue": "lab"}, "lab.predict": {"queue": "lab"}}
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False  # a traceback would be a line a word
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(FOOTPLATE_HOME / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "clear-expired-sessions": {"task": "dashboard.clear_expired_sessions", "schedule": 3600.0},
    "prune-alerts": {"task": "telemetry.prune_alerts", "schedule": 86_400.0},
    # What is not done before the next one is due is done by that one.
    "settle-alerts": {"task": "telemetry.settle_alerts", "schedule": 2.0, "options": {"expires": 10.0}},
    "drain-requests": {"task": "telemetry.drain_requests", "schedule": 2.0, "options": {"expires": 10.0}},
    "prune-requests": {"task": "telemetry.prune_requests", "schedule": 600.0},
    "work-off-lab": {"task": "lab.work_off", "schedule": 5.0, "options": {"expires": 5.0}},
    "settle-lab": {"task": "lab.settle_orphans", "schedule": 30.0, "options": {"expires": 30.0}},
    "fit-costs": {"task": "lab.fit_costs", "schedule": 60.0, "options": {"expires": 60.0}},
    "follow-predictions": {"task": "lab.follow_predictions", "schedule": 20.0, "options": {"expires": 20.0}},
    "prune-lab": {"task": "lab.prune_runs", "schedule": 86_400.0},
    "advance-autopilots": {"task": "lab.advance_autopilots", "schedule": 5.0, "options": {"expires": 5.0}},
    "drain-chronicle": {"task": "telemetry.drain_chronicle", "schedule": 5.0, "options": {"expires": 20.0}},
    "prune-rollups": {"task": "telemetry.prune_rollups", "schedule": 3600.0},
    "keep-effects": {"task": "tuning.keep_effects", "schedule": 300.0, "options": {"expires": 300.0}},
}

# --- Logging -------------------------------------------------------------------------------------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "filters": {
        "unrepeated": {"()": "serving.config.quiet_logs.Unrepeated"},
        "unrepeated_form": {"()": "serving.config.quiet_logs.Unrepeated", "by_form": True},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {
        "handlers": ["stderr"],
        "level": _env.choice("FOOTPLATE_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
    },
    "loggers": {
        "daphne": {"level": "WARNING"},
        "celery": {"level": "WARNING"},
        # While Redis is away: a traceback of each job that cannot be sent, each time that it is due.
        "celery.beat": {"filters": ["unrepeated_form"]},
        "celery.worker.consumer.connection": {"level": "INFO"},  # where it is back
        # A traceback a second while Redis is away; serving.telemetry.subscription says it in one line.
        "channels_redis.pubsub": {"level": "CRITICAL"},
        # While PostgreSQL is away: each of a pool's connections says so at each try.
        "psycopg.pool": {"filters": ["unrepeated"]},
    },
}
