"""FOOTPLATE_POOLS is read loudly: several pools, each with what it says and what the other variables say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import LazySettings

from serving.config.bootstrap import DEFAULT_MODEL, pools_to_import_for
from serving.config.env import Environment, EnvironmentProblem
from serving.config.home import StartProblem
from serving.config.pools import PoolSettings, read_own_pool, read_pools

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = Path("/models/default")


def pools(listed: str = "", **variables: str) -> dict[str, PoolSettings]:
    return read_pools(Environment({"FOOTPLATE_POOLS": listed, **variables}), default_model=DEFAULT)


def test_without_the_variable_there_is_one_pool() -> None:
    assert pools() == {"default": PoolSettings(name="default", model=DEFAULT)}
    given = pools(FOOTPLATE_POOL="chat", FOOTPLATE_MODEL="/models/x", FOOTPLATE_WEIGHTS="int8", FOOTPLATE_THREADS="3")
    assert given == {"chat": PoolSettings(name="chat", model=Path("/models/x"), weights="int8", threads=3)}


def test_a_pool_takes_from_the_variables_what_it_leaves_open() -> None:
    listed = "chat; bulk model=/models/x device=cuda dtype=float32 backend=torch weights=int4 kv_cache_mb=512 threads=1"
    common = {"FOOTPLATE_KV_CACHE_MB": "64", "FOOTPLATE_BACKEND": "cpu", "FOOTPLATE_THREADS": "2"}
    found = pools(listed, **common)
    assert list(found) == ["chat", "bulk"]
    assert found["chat"] == PoolSettings(name="chat", model=DEFAULT, kv_cache_mb=64, backend="cpu", threads=2)
    assert found["bulk"] == PoolSettings(
        name="bulk",
        model=Path("/models/x"),
        device="cuda",
        dtype="float32",
        backend="torch",
        weights="int4",
        kv_cache_mb=512,
        threads=1,
    )


@pytest.mark.parametrize(
    "listed",
    [
        "chat;bulk model='/my models/a;b' threads=2",
        'chat;bulk  "model=/my models/a;b"\tthreads=2',
        "; chat ;;\n bulk model=/my\\ models/a\\;b\n  threads=2;",
        "chat threads= weights='';bulk threads=2 model='/my models/a;b'",
    ],
)
def test_words_are_split_as_a_shell_splits_them(listed: str) -> None:
    assert pools(listed) == {
        "chat": PoolSettings(name="chat", model=DEFAULT),
        "bulk": PoolSettings(name="bulk", model=Path("/my models/a;b"), threads=2),
    }


def test_two_pools_share_a_gpu() -> None:
    found = pools("chat; bulk kv_cache_mb=0 max_step_tokens=0", FOOTPLATE_GPU_MEMORY_RATIO="0.45")
    assert [pool.gpu_memory_ratio for pool in found.values()] == [0.45, 0.45]
    common = {"FOOTPLATE_KV_CACHE_MB": "64", "FOOTPLATE_MAX_STEP_TOKENS": "2048"}
    found = pools("chat; bulk kv_cache_mb=0 max_step_tokens=0 gpu_memory_ratio=0.3", **common)
    sizes = {pool.name: (pool.kv_cache_mb, pool.max_step_tokens, pool.gpu_memory_ratio) for pool in found.values()}
    assert sizes == {"chat": (64, 2048, 0.9), "bulk": (0, 0, 0.3)}


def test_a_hash_is_a_letter_like_others() -> None:
    assert pools("chat model=/models/#1")["chat"].model == Path("/models/#1")


def test_paths_are_absolute_and_know_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = pools("chat model=~/m; bulk model=n")
    assert (found["chat"].model, found["bulk"].model) == (tmp_path / "m", tmp_path / "n")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("chat weights=int3", "weights of pool chat must be one of bfloat16, int8, int4, w8a8, not 'int3'"),
        ("chat; bulk device=tpu", "device of pool bulk must be one of cpu, cuda, not 'tpu'"),
        ("chat dtype=float16", "dtype of pool chat must be one of bfloat16, float32, not 'float16'"),
        ("chat backend=gpu", "backend of pool chat must be one of auto, torch, cpu, triton, not 'gpu'"),
        ("chat kv_cache_mb=-1", "kv_cache_mb of pool chat must be an integer from 0 to 10000000, not '-1'"),
        ("chat gpu_memory_ratio=1", "gpu_memory_ratio of pool chat must be a number from 0.05 to 0.99, not '1'"),
        ("chat gpu_memory_ratio=90%", "gpu_memory_ratio of pool chat must be a number from 0.05 to 0.99, not '90%'"),
        ("chat max_step_tokens=15", "max_step_tokens of pool chat must be an integer from 16 to 65536, not '15'"),
        ("chat max_step_tokens=65537", "max_step_tokens of pool chat must be an integer from 16 to 65536, not '65537'"),
        ("chat threads=-1", "threads of pool chat must be an integer from 0 to 1024, not '-1'"),
        ("chat threads=1.5", "threads of pool chat must be an integer from 0 to 1024, not '1.5'"),
        ("chat model=~nobody-of-that-name/m", "model of pool chat must be a folder's path"),
        ("chat wieghts=int8", "what follows the name of pool chat must be OPTION=VALUE"),
        ("chat name=other", "each OPTION once and one of model, device, dtype, backend, weights, kv_cache_mb, threads"),
        ("chat Threads=1", "not 'Threads=1'"),
        ("chat bulk", "what follows the name of pool chat must be OPTION=VALUE"),
        ("chat threads=1 threads=2", "not 'threads=2'"),
        ("chat threads = 1", "not 'threads'"),
        ("model=/models/x", "the name of a pool (';' separates them) must be a name of 1 to 64 letters"),
        ("chat, bulk", "the name of a pool (';' separates them) must be a name"),
        ("a/b", "the name of a pool (';' separates them) must be a name of 1 to 64 letters"),
        ("''", "the name of a pool (';' separates them) must be a name of 1 to 64 letters"),
        ("ch\u00e4t", "the name of a pool (';' separates them) must be a name of 1 to 64 letters"),
        ("chat; bulk; chat", "the name of a pool must be one that no other pool has, not 'chat'"),
        (" ; ;; ", "must be pools separated by ';'"),
        ("chat 'threads=1", "must be words as a shell splits them (No closing quotation)"),
        ("chat\\", "must be words as a shell splits them (No escaped character)"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(listed: str, message: str) -> None:
    with pytest.raises(EnvironmentProblem) as problem:
        pools(listed)
    line = str(problem.value)
    assert line.startswith("footplate: FOOTPLATE_POOLS")
    assert message in line
    assert "\n" not in line


def test_a_variable_that_all_pools_overrule_is_still_checked() -> None:
    with pytest.raises(EnvironmentProblem, match="FOOTPLATE_WEIGHTS must be one of"):
        pools("chat weights=int8", FOOTPLATE_WEIGHTS="int3")


def test_one_name_stands_for_one_model(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tiny").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len(pools(f"chat model={tmp_path}/a/tiny; bulk model={tmp_path}/b/tiny")) == 2
    with pytest.raises(EnvironmentProblem, match=r"model of pool bulk must be the folder of pool chat \(.*/c/tiny'"):
        pools(f"chat model={tmp_path}/a/tiny; bulk model={tmp_path}/c/tiny")


def test_an_engine_joins_the_named_pool_and_otherwise_the_first() -> None:
    found = pools("chat; bulk")
    assert read_own_pool(Environment({}), found) == "chat"
    assert read_own_pool(Environment({"FOOTPLATE_POOL": "bulk"}), found) == "bulk"
    with pytest.raises(EnvironmentProblem, match="FOOTPLATE_POOL must be one of chat, bulk, not 'default'"):
        read_own_pool(Environment({"FOOTPLATE_POOL": "default"}), found)


def test_a_start_imports_the_default_model_where_a_pool_serves_it(tmp_path: Path, settings: LazySettings) -> None:
    settings.FOOTPLATE_HOME = tmp_path
    default, own = tmp_path / "models" / DEFAULT_MODEL, tmp_path / "own"
    settings.FOOTPLATE_POOLS = given = {
        name: PoolSettings(name=name, model=model)
        for name, model in (("chat", default), ("own", own), ("bulk", default))
    }
    with pytest.raises(StartProblem, match=r"the model of pool own, .*/own, is no model folder"):
        pools_to_import_for()
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert pools_to_import_for() == [given["chat"], given["bulk"]]
    default.mkdir(parents=True)
    (default / "config.json").write_text("{}")
    assert pools_to_import_for() == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["runengine", "--pool", "hub"], "no pool 'hub' is set up here, only chat, bulk: see FOOTPLATE_POOLS"),
        (["runengine", "--engines-here", "0"], "--engines-here must be at least 1, not 0"),
        (["enginebench", "--pool", "hub"], "no pool 'hub' is set up here, only chat, bulk: see FOOTPLATE_POOLS"),
    ],
)
def test_commands_say_which_pools_there_are(tmp_path: Path, command: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *command],
        env={**os.environ, "FOOTPLATE_HOME": str(tmp_path), "FOOTPLATE_POOLS": "chat; bulk"}
        | {"DJANGO_SETTINGS_MODULE": "serving.config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"CommandError: {said}\n"
