"""Keys are remembered for as long as nothing changed, and not a request longer."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Collection

import pytest
from django.db import OperationalError
from django.utils import timezone
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.admission import authenticator as module
from serving.admission.authenticator import Authenticator
from serving.admission.key_uses import KeyUses
from serving.admission.keys import KeyText, make_key
from serving.admission.models import ApiKey
from serving.admission.principals import KnownKey, read_known_key
from serving.admission.quotas import change_quotas
from serving.admission.services import add_key, create_key, note_key_uses, revoke_key
from serving.admission.tenants import change_tenant
from serving.contracts import keys
from serving.contracts.errors import InvalidKey, Unavailable
from serving.threads import in_thread
from tests.admission.conftest import Clock, bearer

pytestmark = pytest.mark.django_db(transaction=True)
UNREACHABLE = "unix:///nonexistent/valkey.sock"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prefixes that the database was asked for."""
    asked: list[str] = []

    def read(prefix: str, *, epoch: str | None) -> KnownKey | None:
        asked.append(prefix)
        return read_known_key(prefix, epoch=epoch)

    monkeypatch.setattr(module, "read_known_key", read)
    return asked


@pytest.fixture
async def authenticator(redis: Redis, clock: Clock, reads: list[str]) -> AsyncIterator[Authenticator]:
    made = Authenticator(redis, monotonic=clock)
    yield made
    await made.close()


async def test_a_key_is_read_once_while_nothing_changes(
    authenticator: Authenticator, key: KeyText, reads: list[str]
) -> None:
    principals = [await authenticator.authenticate(bearer(key), at_the_door=at) for at in (False, True, False, True)]
    assert {principal.tenant for principal in principals} == {"acme"}
    assert all(principal.account.epoch is not None for principal in principals)
    assert reads == [key.prefix]


async def test_a_revoked_key_opens_nothing_from_then_on(
    authenticator: Authenticator, key: KeyText, blocking_redis: BlockingRedis
) -> None:
    principal = await authenticator.authenticate(bearer(key))
    await in_thread(revoke_key, principal.tenant_id, key.prefix, author="tests", redis=blocking_redis)
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(bearer(key))
    with pytest.raises(InvalidKey):
        await authenticator.account_of(key.prefix)


async def test_at_the_door_the_account_tells_its_epoch_and_is_read_anew_on_request(
    authenticator: Authenticator, key: KeyText, blocking_redis: BlockingRedis, redis: Redis, reads: list[str]
) -> None:
    old = await authenticator.authenticate(bearer(key), at_the_door=True)
    await in_thread(change_quotas, old.tenant_id, {"tokens_per_day": 5}, author="tests", redis=blocking_redis)
    stale = (await authenticator.authenticate(bearer(key), at_the_door=True)).account
    stored = await redis.get(keys.admission_epoch())
    assert stored is not None
    assert stale.epoch != stored.decode()
    fresh = await authenticator.account_of(key.prefix)
    assert fresh.epoch == stored.decode()
    assert fresh.charges[0].quotas.tokens_per_day == 5
    # What was read for the door is remembered for whoever comes next.
    assert (await authenticator.authenticate(bearer(key), at_the_door=True)).account == fresh
    assert len(reads) == 2


async def test_a_disabled_tenants_keys_open_nothing_from_then_on(
    authenticator: Authenticator, key: KeyText, blocking_redis: BlockingRedis
) -> None:
    principal = await authenticator.authenticate(bearer(key))
    await in_thread(change_tenant, principal.tenant_id, {"enabled": False}, author="tests", redis=blocking_redis)
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(bearer(key))
    await in_thread(change_tenant, principal.tenant_id, {"enabled": True}, author="tests", redis=blocking_redis)
    assert (await authenticator.authenticate(bearer(key))).tenant == "acme"


async def test_a_key_that_opens_nothing_is_looked_up_once_while_nothing_changes(
    authenticator: Authenticator,
    key: KeyText,
    reads: list[str],
    blocking_redis: BlockingRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_up = make_key()
    for at_the_door in (False, True, True, False):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(bearer(made_up), at_the_door=at_the_door)
    assert reads == [made_up.prefix]
    tenant_id = (await authenticator.authenticate(bearer(key))).tenant_id
    monkeypatch.setattr("serving.admission.services.make_key", lambda: made_up)
    await in_thread(add_key, tenant_id, author="tests", redis=blocking_redis, scopes=["generate"])
    assert (await authenticator.authenticate(bearer(made_up), at_the_door=True)).tenant == "acme"


async def test_what_became_valid_untold_opens_once_what_is_remembered_has_grown_old(
    authenticator: Authenticator, key: KeyText, clock: Clock
) -> None:
    unknown = make_key()
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(bearer(unknown))
    await ApiKey.objects.filter(prefix=key.prefix).aupdate(prefix=unknown.prefix, digest=unknown.digest)
    clock.seconds += module.LIFE_SECONDS
    assert (await authenticator.authenticate(bearer(unknown))).tenant == "acme"


async def test_one_made_up_key_sent_many_times_at_once_is_looked_up_once(
    authenticator: Authenticator, reads: list[str], transactional_db: None
) -> None:
    made_up = make_key()
    answers = await asyncio.gather(
        *[authenticator.authenticate(bearer(made_up)) for _ in range(50)], return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {InvalidKey}
    # Those in the first few turns may not have heard of each other.
    assert 1 <= len(reads) <= 4


async def test_a_wrong_secret_does_not_open_what_is_remembered(authenticator: Authenticator, key: KeyText) -> None:
    await authenticator.authenticate(bearer(key))
    forged = f"fp-{key.prefix}-{make_key().text.split('-', 2)[2]}"
    for at_the_door in (False, True):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(f"Bearer {forged}", at_the_door=at_the_door)
    assert (await authenticator.authenticate(bearer(key))).tenant == "acme"


async def test_expiry_counts_for_remembered_keys_too(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    ends = timezone.now() + datetime.timedelta(hours=1)
    key = await in_thread(create_key, "acme", expires_at=ends)
    await authenticator.authenticate(bearer(key))
    monkeypatch.setattr("serving.admission.principals.timezone.now", lambda: ends)
    for at_the_door in (True, False):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(bearer(key), at_the_door=at_the_door)


async def test_what_redis_could_not_be_told_counts_once_what_is_remembered_has_grown_old(
    authenticator: Authenticator, key: KeyText, clock: Clock
) -> None:
    principal = await authenticator.authenticate(bearer(key))
    unreachable = BlockingRedis.from_url(UNREACHABLE)
    await in_thread(revoke_key, principal.tenant_id, key.prefix, author="tests", redis=unreachable)
    clock.seconds += module.LIFE_SECONDS
    for at_the_door in (True, False):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(bearer(key), at_the_door=at_the_door)


async def test_while_redis_is_out_of_reach_the_database_is_asked_each_time(
    key: KeyText, clock: Clock, reads: list[str]
) -> None:
    redis = Redis.from_url(UNREACHABLE)
    authenticator = Authenticator(redis, monotonic=clock)
    for at_the_door in (False, True, False):
        principal = await authenticator.authenticate(bearer(key), at_the_door=at_the_door)
        assert principal.account.epoch is None
    assert reads == [key.prefix] * 3
    await authenticator.close()
    await redis.aclose()


async def test_what_changed_while_redis_was_away_counts_when_it_is_back_as_it_was(
    authenticator: Authenticator, key: KeyText, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    principal, other = await authenticator.authenticate(bearer(key)), await in_thread(create_key, "other")

    async def fail(*_: object) -> None:
        raise RedisConnectionError

    with monkeypatch.context() as outage:
        outage.setattr(redis, "get", fail)
        await authenticator.authenticate(bearer(other))
        unreachable = BlockingRedis.from_url(UNREACHABLE)
        await in_thread(revoke_key, principal.tenant_id, key.prefix, author="tests", redis=unreachable)
    for at_the_door in (True, False):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(bearer(key), at_the_door=at_the_door)


async def test_while_the_database_is_away_keys_go_on_whose_epoch_lasts(
    authenticator: Authenticator, key: KeyText, redis: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await in_thread(create_key, "other")
    before = await authenticator.authenticate(bearer(key))
    clock.seconds += 100 * module.LIFE_SECONDS

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("no database")

    monkeypatch.setattr(module, "read_known_key", fail)
    for at_the_door in (False, True):
        assert await authenticator.authenticate(bearer(key), at_the_door=at_the_door) == before
    with pytest.raises(Unavailable):
        await authenticator.authenticate(bearer(other))
    await redis.set(keys.admission_epoch(), "another")
    with pytest.raises(Unavailable):
        await authenticator.authenticate(bearer(key))


async def test_a_redis_that_lost_its_data_begins_another_epoch(
    authenticator: Authenticator, key: KeyText, redis: Redis, reads: list[str]
) -> None:
    before = await authenticator.authenticate(bearer(key))
    await redis.flushall()
    after = await authenticator.authenticate(bearer(key))
    assert after.account.epoch not in (None, before.account.epoch)
    assert len(reads) == 2


async def test_only_so_many_keys_are_remembered(
    authenticator: Authenticator, key: KeyText, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_KEYS", 2)
    others = [await in_thread(create_key, "acme") for _ in range(2)]
    for one in (key, *others, others[1], others[0], key):
        await authenticator.authenticate(bearer(one))
    assert reads == [key.prefix, others[0].prefix, others[1].prefix, key.prefix]


async def test_a_cancelled_request_stays_cancelled(authenticator: Authenticator, key: KeyText) -> None:
    task = asyncio.create_task(authenticator.authenticate(bearer(key)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_last_use_is_written_beside_the_request_and_at_most_once_a_minute(key: KeyText, clock: Clock) -> None:
    written: list[set[str]] = []

    def write(prefixes: Collection[str]) -> None:
        written.append(set(prefixes))
        note_key_uses(prefixes)

    uses = KeyUses(write=write, monotonic=clock)
    for _ in range(3):
        uses.note(key.prefix)
    assert written == []
    await uses.close()
    clock.seconds += 59
    uses.note(key.prefix)
    await uses.close()
    assert written == [{key.prefix}]
    first = (await ApiKey.objects.aget(prefix=key.prefix)).last_used_at
    assert first is not None
    clock.seconds += 1
    uses.note(key.prefix)
    await uses.close()
    assert written == [{key.prefix}] * 2
    # The other process's clock does not count: the database keeps the minute for all of them.
    assert (await ApiKey.objects.aget(prefix=key.prefix)).last_used_at == first
    long_ago = first - datetime.timedelta(minutes=1)
    await ApiKey.objects.filter(prefix=key.prefix).aupdate(last_used_at=long_ago)
    await in_thread(note_key_uses, [key.prefix])
    assert (await ApiKey.objects.aget(prefix=key.prefix)).last_used_at != long_ago


async def test_a_last_use_that_cannot_be_written_fails_nobody(
    redis: Redis, key: KeyText, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(prefixes: Collection[str]) -> None:
        raise OperationalError("the disk is full")

    authenticator = Authenticator(redis, uses=KeyUses(write=refuse, monotonic=clock), monotonic=clock)
    assert (await authenticator.authenticate(bearer(key))).tenant == "acme"
    await authenticator.close()
    assert "the disk is full" in caplog.text
    assert key.text not in caplog.text


async def test_authenticating_notes_the_use(authenticator: Authenticator, key: KeyText) -> None:
    await authenticator.authenticate(bearer(key))
    await authenticator.close()
    assert (await ApiKey.objects.aget(prefix=key.prefix)).last_used_at is not None
