"""Alerts are stored once, and told to webhooks at least once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hmac
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.errors import InvalidValue
from serving.telemetry import alert_log, alert_rules
from serving.telemetry.alert_models import Alert, AlertNotice, AlertRule
from serving.telemetry.alerts import decode_alert, encode_alert
from serving.telemetry.webhook_signing import fingerprint_of
from serving.telemetry.webhooks import WebhookFailed, check_url, post_json
from tests.telemetry.alerting import FAST, HOSTS, POOL, SLOW, Rules, Watched, rule, store_rule


@pytest.fixture
def stored_rule(db: None) -> AlertRule:
    return store_rule()


@pytest.fixture
def blocking(valkey: str) -> Iterator[BlockingRedis]:
    with BlockingRedis.from_url(valkey) as client:
        yield client


def raise_and_end(blocking: BlockingRedis, rule_id: int, *, ends: bool = True) -> None:
    """What a watcher writes when an alert begins, and when it is over."""

    async def play() -> None:
        async with Redis.from_url(url_of(blocking)) as redis:
            rules = Rules()
            rules.rules = [rule(id=rule_id)]
            watched = Watched(redis, rules)
            await watched.see(0, ttfts=FAST)
            for second, ttfts in ((1, SLOW), (11, SLOW), *(((12, FAST), (22, FAST)) if ends else ())):
                await watched.see(second, ttfts=ttfts)

    asyncio.run(play())


def url_of(blocking: BlockingRedis) -> str:
    options = blocking.connection_pool.connection_kwargs
    return f"unix://{options['path']}" if "path" in options else f"redis://{options['host']}:{options['port']}"


def test_the_log_is_stored_once_whatever_happens_between(
    blocking: BlockingRedis, stored_rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_and_end(blocking, stored_rule.pk)

    def die(*_: Any) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(blocking, "xdel", die)
        with pytest.raises(ConnectionError):
            alert_log.store_alerts(blocking)
    assert alert_log.store_alerts(blocking) == 2
    assert alert_log.store_alerts(blocking) == 0
    (alert,) = Alert.objects.all()
    assert alert.rule == stored_rule
    assert (alert.ended_at - alert.began_at).total_seconds() == 11
    assert sorted(alert.notices.values_list("kind", flat=True)) == ["began", "ended"]


def test_an_entry_that_is_not_understood_keeps_no_other_back(blocking: BlockingRedis, stored_rule: Any) -> None:
    blocking.xadd(keys.alert_log(), {keys.FIELD: b"\xff"})
    raise_and_end(blocking, stored_rule.pk)
    assert alert_log.store_alerts(blocking) == 3
    assert Alert.objects.count() == 1


def test_an_alert_that_a_redis_without_data_forgot_is_over(blocking: BlockingRedis, stored_rule: Any) -> None:
    raise_and_end(blocking, stored_rule.pk, ends=False)
    clock = WallClock()
    assert alert_log.store_alerts(blocking, now=clock) == 1
    assert alert_log.store_alerts(blocking, now=clock) == 0
    assert Alert.objects.get().ended_at is None
    blocking.hset(keys.alerts(), "another", b"\xff")
    blocking.hdel(keys.alerts(), f"{stored_rule.pk}:{POOL}")
    alert_log.store_alerts(blocking, now=clock)
    assert Alert.objects.get().ended_at is None, "what another version wrote may be this one"
    blocking.flushall()
    alert_log.store_alerts(blocking, now=clock)
    alert = Alert.objects.get()
    assert alert.ended_at == clock.now
    assert alert.why_ended == "Redis lost what was known of it"
    assert sorted(alert.notices.values_list("kind", flat=True)) == ["began", "ended"]


class Hook(http.server.BaseHTTPRequestHandler):
    """Takes what it is posted down, and answers with the next status."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.taken.append((self.path, dict(self.headers.items()), body))
        self.send_response(server.statuses.pop(0) if server.statuses else 204)
        self.send_header("location", "http://127.0.0.1:9/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.taken, server.statuses = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Raw(socketserver.BaseRequestHandler):
    """Answers with bytes of its own, at last one by one until nobody reads them."""

    def handle(self) -> None:
        server: Any = self.server
        self.request.recv(65_536)
        with contextlib.suppress(OSError):
            self.request.sendall(server.answer)
            while server.drips and not server.stops.wait(0.01):
                self.request.sendall(b"a")


@pytest.fixture
def raw() -> Iterator[Any]:
    server: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Raw)
    server.drips, server.stops = False, threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stops.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("answer", "drips"), [(b"hello\r\n\r\n", False), (b"", False), (b"HTTP/1.1 ", True)])
def test_what_is_no_answer_or_never_ends_is_a_failure(
    raw: Any, answer: bytes, drips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.telemetry.webhooks._LONGEST_SECONDS", 0.3)
    raw.answer, raw.drips = answer, drips
    url = f"http://127.0.0.1:{raw.server_address[1]}/hook"
    with pytest.raises(WebhookFailed, match="cannot be reached"):
        post_json(url, b"{}", headers={}, allowed_hosts=HOSTS)


class WallClock:
    def __init__(self) -> None:
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)


def test_a_webhook_is_told_of_beginning_and_end_again_until_it_takes_it(
    blocking: BlockingRedis, stored_rule: Any, hook: Any
) -> None:
    url = f"http://127.0.0.1:{hook.server_address[1]}/hook"
    alert_rules.change_rule(stored_rule.pk, {"webhook_url": url}, author="ada", allowed_hosts=HOSTS)
    raise_and_end(blocking, stored_rule.pk)
    clock = WallClock()
    alert_log.store_alerts(blocking, now=clock)
    hook.statuses = [500, 302]
    assert alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock) == 0
    assert alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock) == 0, "it is not due yet"
    assert len(hook.taken) == 1, "an end is told after its beginning"
    clock.pass_by(6)
    assert alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock) == 0
    clock.pass_by(11)
    assert [alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock) for _ in range(3)] == [1, 1, 0]
    assert [json.loads(body)["event"] for _, _, body in hook.taken] == ["alert.began"] * 3 + ["alert.ended"]
    assert {path for path, _, _ in hook.taken} == {"/hook"}
    secret = alert_rules.webhook_secret(alert_rules.find_rule(stored_rule.pk))
    assert all(is_ours(headers, body, secret=secret, now=clock) for _, headers, body in hook.taken)
    _, headers, body = hook.taken[2]
    assert not is_ours(headers, body + b" ", secret=secret, now=clock)
    assert not is_ours(headers, body, secret="whsec_" + "A" * 43 + "=", now=clock)
    assert not is_ours(headers | {"webhook-timestamp": "1"}, body, secret=secret, now=clock)
    ids = [headers["webhook-id"] for _, headers, _ in hook.taken]
    assert (len(set(ids[:3])), len(set(ids))) == (1, 2), "who is told twice can tell"
    assert len({headers["webhook-timestamp"] for _, headers, _ in hook.taken[:3]}) == 3
    content = json.loads(body)
    assert content | {"value": 0} == {
        "event": "alert.began",
        "alert": content["alert"],
        "name": "slow",
        "pool": "chat",
        "condition": "TTFT p95 above 500 ms for 10 s",
        "value": 0,
        "began_at": "1970-01-01T00:00:11+00:00",
        "ended_at": "1970-01-01T00:00:22+00:00",
        "why_ended": None,
    }
    clock.pass_by(10_000)
    assert alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock) == 0


def is_ours(headers: dict[str, str], body: bytes, *, secret: str, now: WallClock) -> bool:
    """What a receiver does: see the README."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
    given = [base64.b64decode(one[3:]) for one in headers["webhook-signature"].split() if one.startswith("v1,")]
    is_new = abs(now().timestamp() - int(headers["webhook-timestamp"])) < 300
    return is_new and any(hmac.compare_digest(wanted, one) for one in given)


def test_a_renewed_secret_signs_what_is_owed_and_a_secret_of_another_address_does_not(
    blocking: BlockingRedis, stored_rule: Any, hook: Any
) -> None:
    url = f"http://127.0.0.1:{hook.server_address[1]}/hook"
    changed = alert_rules.change_rule(stored_rule.pk, {"webhook_url": url}, author="ada", allowed_hosts=HOSTS)
    assert changed.webhook_salt != stored_rule.webhook_salt
    raise_and_end(blocking, stored_rule.pk)
    clock = WallClock()
    alert_log.store_alerts(blocking, now=clock)
    renewed = alert_rules.renew_webhook_secret(
        stored_rule.pk, author="ada", based_on=fingerprint_of(changed.webhook_salt)
    )
    alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock)
    other = {"webhook_url": "http://127.0.0.1:9/other"}
    moved = alert_rules.change_rule(stored_rule.pk, other, author="ada", allowed_hosts=HOSTS)
    alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock)
    (_, began, body), (_, ended, end) = hook.taken
    assert is_ours(began, body, secret=alert_rules.webhook_secret(renewed), now=clock)
    assert not is_ours(ended, end, secret=alert_rules.webhook_secret(moved), now=clock), "the old address was told"
    assert is_ours(ended, end, secret=alert_rules.webhook_secret(renewed), now=clock), "which is what it was given last"


def test_a_renewed_secret_signs_the_end_that_is_owed_beyond_its_rule(
    blocking: BlockingRedis, stored_rule: Any, hook: Any
) -> None:
    url = f"http://127.0.0.1:{hook.server_address[1]}/hook"
    rule = alert_rules.change_rule(stored_rule.pk, {"webhook_url": url}, author="ada", allowed_hosts=HOSTS)
    raise_and_end(blocking, rule.pk, ends=False)
    clock = WallClock()
    alert_log.store_alerts(blocking, now=clock)
    alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock)
    renewed = alert_rules.renew_webhook_secret(rule.pk, author="ada", based_on=fingerprint_of(rule.webhook_salt))
    alert_rules.delete_rule(rule.pk, author="ada")
    (raised,) = blocking.hvals(keys.alerts())
    blocking.xadd(
        keys.alert_log(), {keys.FIELD: encode_alert(msgspec.structs.replace(decode_alert(raised), ended_at=20.0))}
    )
    alert_log.store_alerts(blocking, now=clock)
    alert_log.deliver_notices(allowed_hosts=HOSTS, now=clock)
    _, (_, ended, end) = hook.taken
    assert is_ours(ended, end, secret=alert_rules.webhook_secret(renewed), now=clock)


def test_an_alert_of_a_pool_that_was_left_out_ends_with_its_reason(blocking: BlockingRedis, stored_rule: Any) -> None:
    raise_and_end(blocking, stored_rule.pk, ends=False)
    alert_log.store_alerts(blocking)
    (raised,) = blocking.hvals(keys.alerts())
    over = msgspec.structs.replace(decode_alert(raised), ended_at=20.0, why_ended="its pool is no longer configured")
    blocking.xadd(keys.alert_log(), {keys.FIELD: encode_alert(over)})
    alert_log.store_alerts(blocking)
    alert_log.store_alerts(blocking)
    assert Alert.objects.get().why_ended == "its pool is no longer configured"
    ended = AlertNotice.objects.get(kind="ended")
    assert alert_log.content_of(ended)["why_ended"] == "its pool is no longer configured"


def test_an_address_that_is_allowed_no_more_is_not_told_to_who_reads_why(
    blocking: BlockingRedis, stored_rule: Any
) -> None:
    raise_and_end(blocking, stored_rule.pk, ends=False)
    alert_log.store_alerts(blocking)
    alert_log.deliver_notices(allowed_hosts={"alerts.example"})
    problem = AlertNotice.objects.get().problem
    assert "FOOTPLATE_WEBHOOK_HOSTS" in problem
    assert "/hook" not in problem


def test_who_was_told_of_a_beginning_is_told_of_the_end_though_the_rule_is_gone(
    blocking: BlockingRedis, stored_rule: Any
) -> None:
    raise_and_end(blocking, stored_rule.pk, ends=False)
    alert_log.store_alerts(blocking)
    alert_rules.delete_rule(stored_rule.pk, author="ada")
    (raised,) = blocking.hvals(keys.alerts())
    over = msgspec.structs.replace(decode_alert(raised), ended_at=20.0)
    blocking.xadd(keys.alert_log(), {keys.FIELD: encode_alert(over)})
    alert_log.store_alerts(blocking)
    assert list(AlertNotice.objects.order_by("pk").values_list("kind", "url")) == [
        ("began", "http://127.0.0.1:9/hook"),
        ("ended", "http://127.0.0.1:9/hook"),
    ]


def test_a_webhook_that_never_takes_it_is_given_up_and_says_why(blocking: BlockingRedis, stored_rule: Any) -> None:
    raise_and_end(blocking, stored_rule.pk)
    clock, posts = WallClock(), []
    alert_log.store_alerts(blocking, now=clock)

    def fail(*args: Any, **_: Any) -> None:
        posts.append(args)
        raise WebhookFailed("it answered 500")

    for _ in range(20):
        alert_log.deliver_notices(allowed_hosts=HOSTS, post=fail, now=clock)
        clock.pass_by(601)
    assert len(posts) == 2 * alert_log.MOST_ATTEMPTS
    assert set(AlertNotice.objects.values_list("due_at", "delivered_at", "problem")) == {
        (None, None, "it answered 500")
    }


def test_of_two_jobs_that_find_one_notice_one_posts(blocking: BlockingRedis, stored_rule: Any) -> None:
    raise_and_end(blocking, stored_rule.pk)
    clock = WallClock()
    alert_log.store_alerts(blocking, now=clock)
    posts: list[str] = []

    def post_while_another_job_runs(url: str, *_: Any, **__: Any) -> None:
        posts.append(url)
        alert_log.deliver_notices(allowed_hosts=HOSTS, post=lambda url, *_, **__: posts.append(url), now=clock)

    alert_log.deliver_notices(allowed_hosts=HOSTS, post=post_while_another_job_runs, now=clock)
    assert len(posts) == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/hook",
        "https://alerts.example/hook",
        "http://alerts.example:8443/hook",
        "https://user:pass@alerts.example:8443/",
        "https://alerts.example:8443@evil.example/",
        "https://127.0.0.1.evil.example/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://alerts.example:99999/",
        "https://[::1/",
        "http://127.0.0.1/a\r\nhost: evil",
        "https://alerts.example:8443/" + "a" * 500,
        "nonsense",
    ],
)
def test_addresses_that_nobody_allowed_are_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match="webhook_url"):
        check_url(url, allowed_hosts=HOSTS)
    with pytest.raises(WebhookFailed):
        post_json(url, b"{}", headers={}, allowed_hosts=HOSTS)


def test_addresses_that_are_allowed_are_not() -> None:
    for url in ("https://alerts.example:8443/hook?a=b", "https://ALERTS.example:8443", "http://127.0.0.1:1/"):
        check_url(url, allowed_hosts=HOSTS)
