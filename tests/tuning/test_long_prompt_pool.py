"""The tunable that names a bulk pool: what it may name, and what was stored and sent before it existed."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from serving.contracts.errors import InvalidValue, NothingChanges
from serving.contracts.messages import AnnouncedTunables, Retune, decode_announced, decode_control, encode
from serving.contracts.presets import PRESETS, preset_changes
from serving.contracts.tunables import Tunables
from serving.tuning import selectors, services
from serving.tuning.models import Pool, TunablesVersion

LONGEST = "b" * 64


@pytest.fixture
def bulk(pool: str) -> str:
    """Another pool of the same model, beside one of another model."""
    services.ensure_pool("elsewhere", "another-model")
    return services.ensure_pool("bulk", "a-model").name


def send_long_prompts_to(name: Any, *, of: str, redis: Redis) -> TunablesVersion:
    return services.change(of, {"long_prompt_pool": name}, reason="", author="tests", redis=redis)


def roll_back(pool: str, number: int, redis: Redis) -> TunablesVersion:
    return services.roll_back(pool, number, reason="", author="tests", redis=redis)


@pytest.mark.parametrize("name", ["", "bulk", "Bulk_2-a.b", "-", "1", LONGEST])
def test_a_name_that_a_pool_may_have_is_admitted_and_survives_the_wire(name: str) -> None:
    tunables = Tunables().changed({"long_prompt_pool": name})
    assert decode_control(encode(Retune(2, tunables))) == Retune(2, tunables)
    assert decode_announced(encode(AnnouncedTunables(2, tunables))).tunables.long_prompt_pool == name


@pytest.mark.parametrize(
    "wrong", ["a b", ".a", "a\n", "\n", "a\0b", "a/b", "ü", LONGEST + "b", " ", None, 1, True, ["bulk"], {"bulk": 1}]
)
def test_what_no_pool_can_be_called_is_refused_by_a_change_and_on_the_wire(wrong: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Tunables().changed({"long_prompt_pool": wrong})
    assert caught.value.param == "long_prompt_pool"
    assert "long_prompt_pool must be empty, or the name of a pool: 1 to 64 letters" in caught.value.message
    with pytest.raises(msgspec.ValidationError):
        decode_control(encode(Retune(2, msgspec.structs.replace(Tunables(), long_prompt_pool=wrong))))


def test_what_was_announced_and_stored_before_it_existed_names_none(pool: str) -> None:
    values = {name: value for name, value in Tunables(max_running=7).as_dict().items() if name != "long_prompt_pool"}
    for message, decode in (
        ({"type": "retune", "version": 3, "tunables": values}, decode_control),
        ({"version": 3, "tunables": values}, decode_announced),
    ):
        read = decode(msgspec.msgpack.encode(message))
        assert read.tunables == Tunables(max_running=7)
    TunablesVersion.objects.filter(pool__name=pool).update(values=values)
    assert selectors.current_tunables(pool).tunables == Tunables(max_running=7)


def test_another_pool_of_the_same_model_is_named_and_taken_back(pool: str, bulk: str, redis: Redis) -> None:
    version = send_long_prompts_to(bulk, of=pool, redis=redis)
    assert version.changes == {"long_prompt_pool": ["", "bulk"]}
    assert selectors.current_tunables(pool).tunables.long_prompt_pool == "bulk"
    with pytest.raises(NothingChanges):
        send_long_prompts_to(bulk, of=pool, redis=redis)
    assert send_long_prompts_to("", of=pool, redis=redis).changes == {"long_prompt_pool": ["bulk", ""]}


@pytest.mark.parametrize("wrong", ["default", "elsewhere", "nowhere", "BULK"])
def test_only_another_pool_of_the_same_model_may_be_named(pool: str, bulk: str, redis: Redis, wrong: str) -> None:
    services.ensure_pool("also", "a-model")
    with pytest.raises(InvalidValue) as caught:
        send_long_prompts_to(wrong, of=pool, redis=redis)
    assert caught.value.param == "long_prompt_pool"
    told = f"long_prompt_pool must be empty, or another pool of a-model: also, bulk, not {wrong!r}"
    assert caught.value.message == told
    assert selectors.current_tunables(pool).version == 1


def test_where_no_other_pool_serves_the_model_none_may_be_named(pool: str, redis: Redis) -> None:
    with pytest.raises(InvalidValue, match="must be empty, as no other pool serves a-model, not 'bulk'"):
        send_long_prompts_to("bulk", of=pool, redis=redis)


def test_no_roll_back_brings_back_a_pool_that_would_do_no_longer(pool: str, bulk: str, redis: Redis) -> None:
    send_long_prompts_to(bulk, of=pool, redis=redis)
    send_long_prompts_to("", of=pool, redis=redis)
    Pool.objects.filter(name=bulk).update(model="another-model")
    with pytest.raises(InvalidValue, match=r"long_prompt_pool must be empty.*not 'bulk'"):
        roll_back(pool, 2, redis)
    Pool.objects.filter(name=bulk).delete()
    with pytest.raises(InvalidValue, match=r"long_prompt_pool must be empty.*not 'bulk'"):
        roll_back(pool, 2, redis)
    assert selectors.current_tunables(pool).version == 3
    services.ensure_pool(bulk, "a-model")
    assert roll_back(pool, 2, redis).changes == {"long_prompt_pool": ["", "bulk"]}


def test_a_pool_that_went_away_keeps_no_other_lever_from_moving(pool: str, bulk: str, redis: Redis) -> None:
    send_long_prompts_to(bulk, of=pool, redis=redis)
    Pool.objects.filter(name=bulk).delete()
    services.change(pool, {"max_running": 8}, reason="", author="tests", redis=redis)
    assert roll_back(pool, 1, redis).changes == {"long_prompt_pool": ["bulk", ""], "max_running": [8, 32]}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_leave_it_alone(preset: str) -> None:
    own = Tunables(long_prompt_pool="bulk")
    assert own.changed(preset_changes(preset)).long_prompt_pool == "bulk"


def test_command_sets_shows_and_lists_it(pool: str, bulk: str, redis: Redis, valkey: str, settings: Any) -> None:
    settings.REDIS_URL = valkey
    services.ensure_pool("1", "a-model")

    def run(*arguments: str) -> str:
        output = io.StringIO()
        call_command("tunables", *arguments, "--pool", pool, stdout=output)
        return output.getvalue()

    def shown() -> str:
        (line,) = (line for line in run("show").splitlines() if line.startswith("long_prompt_pool"))
        return line.split()[1]

    assert shown() == "(empty)"
    assert "long_prompt_pool (empty) → bulk" in run("set", "long_prompt_pool=bulk")
    assert shown() == "bulk"
    # What reads like a number is a name here.
    assert "long_prompt_pool bulk → 1" in run("set", "long_prompt_pool=1")
    assert "long_prompt_pool 1 → (empty)" in run("set", "long_prompt_pool=")
    assert "long_prompt_pool 1 → (empty)" in run("history")
    with pytest.raises(CommandError, match="another pool of a-model: 1, bulk, not 'default'"):
        run("set", "long_prompt_pool=default")
