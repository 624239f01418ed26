"""`manage.py runengine`: one engine process."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import Redis

from serving.config.pools import DEVICES, DTYPES
from serving.config.presence import keep_log, presence
from serving.config.valkey import RedisUnreachable, ping
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.management.pools import configured_pool


class Command(BaseCommand):
    """Builds a runner from the settings and serves a pool with it."""

    help = "Run an engine: needs Redis and a model folder, no database."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pool", default=settings.FOOTPLATE_POOL, help="which to join: one of FOOTPLATE_POOLS")
        parser.add_argument("--device", choices=DEVICES, help="in place of the pool's")
        parser.add_argument("--dtype", choices=DTYPES, help="in place of the pool's")
        parser.add_argument(
            "--engines-here",
            type=int,
            default=1,
            metavar="N",
            help="engines that compute on this machine's cores: one whose pool says no threads takes its part of them",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["engines_here"] < 1:
            raise CommandError(f"--engines-here must be at least 1, not {options['engines_here']}")
        pool = configured_pool(options["pool"])
        device, dtype = options["device"] or pool.device, options["dtype"] or pool.dtype

        # Only this process and those that import or measure a model pay for torch.
        from serving.engine.warming import set_aside, warm_up
        from serving.management.engine_runner import build_of, build_runner, weights_of
        from serving.worker.host import EngineBroken
        from serving.worker.lifecycle import EngineWorker, run_until_signalled

        def connect() -> Redis:
            return Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)

        try:
            ping(settings.REDIS_URL)
        except RedisUnreachable as problem:
            raise CommandError(f"{problem}; `serve` runs one, REDIS_URL names another") from None
        logs = keep_log()  # what the loading of a model has to say belongs to its engine's log
        runner = build_runner(pool, device=device, dtype=dtype, engines_here=options["engines_here"])
        warm_up(runner)
        worker = EngineWorker(
            runner,
            redis=connect,
            pool=PoolName(pool.name),
            model=pool.model.name,
            device=device,
            dtype=weights_of(pool, runner.config, dtype=dtype),
            backend=runner.backend,
            build=build_of(device),
            gauge=runner.device_usage,
            masks=runner.masks,
        )
        set_aside()
        try:
            with presence(
                "engine",
                name=worker.snapshot().name,
                process_id=worker.engine_id,
                doing=lambda: _sequences_in_words(worker.snapshot()),
                logs=logs,
            ):
                run_until_signalled(worker, drain_seconds=settings.FOOTPLATE_DRAIN_SECONDS)
        except EngineBroken as broken:
            raise CommandError(str(broken)) from None


def _sequences_in_words(snapshot: EngineSnapshot) -> str:
    return f"{snapshot.num_running} running, {snapshot.num_waiting} waiting"
