"""`manage.py runengine`: one engine process."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import PoolName


class Command(BaseCommand):
    """Builds a runner from the settings and serves a pool with it."""

    help = "Run an engine: needs Redis and a model folder, no database."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", default=settings.FOOTPLATE_POOL)
        parser.add_argument("--device", default=settings.FOOTPLATE_DEVICE, choices=("cpu", "cuda"))
        parser.add_argument("--dtype", default=settings.FOOTPLATE_DTYPE, choices=("bfloat16", "float32"))

    def handle(self, *args: Any, **options: Any) -> None:
        # Only this process and those that import or measure a model pay for torch.
        from serving.management.engine_runner import build_runner, weights_of
        from serving.worker.host import EngineBroken
        from serving.worker.lifecycle import EngineWorker, run_until_signalled

        def connect() -> Redis:
            return Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)

        try:
            connect().ping()
        except (RedisError, OSError) as error:
            raise CommandError(f"Redis cannot be reached at {settings.REDIS_URL}: {error}") from None
        runner = build_runner(device=options["device"], dtype=options["dtype"])
        worker = EngineWorker(
            runner,
            redis=connect,
            pool=PoolName(options["pool"]),
            model=settings.FOOTPLATE_MODEL.name,
            device=options["device"],
            dtype=weights_of(options["dtype"]),
            backend=runner.backend,
            gauge=runner.device_usage,
            masks=runner.masks,
        )
        try:
            run_until_signalled(worker, drain_seconds=settings.FOOTPLATE_DRAIN_SECONDS)
        except EngineBroken as broken:
            raise CommandError(str(broken)) from None
