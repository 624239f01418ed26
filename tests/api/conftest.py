"""The real application around a scripted gateway: what a request produces is the test's to say, all else is real."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import math
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from serving.admission.authenticator import Authenticator
from serving.admission.door import Door, Permit
from serving.admission.drain import DrainState
from serving.admission.keys import KeyText
from serving.admission.prediction import Predictor
from serving.admission.selectors import used_tokens
from serving.admission.services import create_key
from serving.admission.spent_before import SpentBefore
from serving.admission.tenants import ensure_tenant
from serving.api.prompting import Prompter
from serving.api.starting import Starter
from serving.config.asgi import build_application
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.contracts.messages import MAX_PRIORITY, EngineTimings
from serving.contracts.tunables import Tunables
from serving.gateway.generation import ChoiceDelta, Generation
from serving.gateway.observer import Ended
from serving.gateway.pools import PoolView
from serving.gateway.stream import GenerationStream
from serving.gateway.text.chat_template import ChatTemplate
from serving.gateway.text.tokenizer import TextModel
from serving.telemetry.exposition import Exposition
from serving.telemetry.request_metrics import RequestMetrics
from serving.threads import in_thread
from serving.tuning.services import ensure_pool

POOL = PoolName("default")
MODEL = "tiny"
CONTEXT = 512
DIMENSIONS = 8
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' and loop.first %}{{ raise_exception('a tool cannot speak first') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)

Script = Callable[[Generation], list[ChoiceDelta | DomainError]]


def vector_of(prompt_ids: Sequence[int]) -> bytes:
    """A vector of length 1, another for each set of tokens."""
    counts = [1 + sum(token_id % DIMENSIONS == place for token_id in prompt_ids) for place in range(DIMENSIONS)]
    return struct.pack(f"<{DIMENSIONS}f", *(count / math.hypot(*counts) for count in counts))


def say_hello(generation: Generation) -> list[ChoiceDelta | DomainError]:
    """Two pieces of text for each choice, or an embedding."""
    if generation.params[0].embeds:
        return [ChoiceDelta(0, "", 0, "stop", embedding=vector_of(generation.prompt_ids))]
    pieces: list[ChoiceDelta | DomainError] = []
    for choice in range(len(generation.params)):
        pieces += [ChoiceDelta(choice, "Hello", 1), ChoiceDelta(choice, f" {choice}", 1, "stop")]
    return pieces


@dataclasses.dataclass
class ScriptedGateway:
    """A gateway without engines. With `holds`, requests wait until the test starts them itself. `others` are pools
    beside `view`."""

    view: PoolView
    door: Door
    others: list[PoolView] = dataclasses.field(default_factory=list)
    script: Script = say_hello
    holds: bool = False
    generations: list[Generation] = dataclasses.field(default_factory=list)
    permits: list[Permit] = dataclasses.field(default_factory=list)
    streams: list[GenerationStream] = dataclasses.field(default_factory=list)
    num_closed: int = 0
    num_refreshes: int = 0

    async def refresh_pools(self) -> None:
        self.num_refreshes += 1

    def generate(self, generation: Generation, *, permit: Any = None) -> GenerationStream:
        stream = GenerationStream(
            num_prompt_tokens=len(generation.prompt_ids), num_choices=len(generation.params), on_close=self._close
        )
        self.generations.append(generation)
        self.permits.append(permit)
        self.streams.append(stream)
        if not self.holds:
            self.play(len(self.streams) - 1)
        return stream

    def play(self, index: int) -> None:
        """Start a request and let it say all of its text."""
        stream = self.streams[index]
        stream.note_timings(EngineTimings(num_cached_tokens=3))
        stream.mark_started()
        for piece in self.script(self.generations[index]):
            if isinstance(piece, DomainError):
                stream.fail(piece)
                return
            stream.num_completion_tokens += piece.num_tokens
            stream.push(piece)

    def keeps_waiting(self, pool: PoolName, tenant: str) -> bool:
        return any(generation.tenant == tenant for generation in self.generations)

    def pools(self) -> list[PoolView]:
        return [self.view, *self.others]

    def change_view(self, **changes: Any) -> None:
        self.view = dataclasses.replace(self.view, **changes)

    def _close(self) -> None:
        self.num_closed += 1


@dataclasses.dataclass
class RecordingObserver:
    """Keeps the outcomes that it is told of, and of which pool."""

    num_submitted: int = 0
    outcomes: list[str] = dataclasses.field(default_factory=list)
    rejections: list[str] = dataclasses.field(default_factory=list)
    pools: list[PoolName] = dataclasses.field(default_factory=list)
    ends: list[Ended] = dataclasses.field(default_factory=list)

    def rejected(self, code: str) -> None:
        self.rejections.append(code)

    def submitted(self, pool: PoolName) -> None:
        self.num_submitted += 1

    def scheduled(self, pool: PoolName, *, queue_seconds: float, **_whose: object) -> None: ...

    def first_token(self, pool: PoolName, *, ttft_seconds: float, **_whose: object) -> None: ...

    def token_gap(self, pool: PoolName, *, itl_seconds: float, **_whose: object) -> None: ...

    def ended(self, ended: Ended) -> None:
        self.outcomes.append(ended.outcome)
        self.pools.append(ended.pool)
        self.ends.append(ended)


@dataclasses.dataclass
class ScriptedServices:
    """The parts of a web process, its gateway being scripted."""

    redis: Redis
    blocking_redis: BlockingRedis
    authenticator: Authenticator
    gateway: ScriptedGateway
    door: Door
    chat_templates: dict[str, ChatTemplate]
    observer: RecordingObserver
    exposition: Exposition
    drain: DrainState
    predictor: Predictor
    starter: Starter
    prompter: Prompter
    header_hold_seconds: float = 5.0


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer, one token a byte, and a chat template."""
    folder = tmp_path_factory.mktemp("models") / MODEL
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": 256, "max_position_embeddings": CONTEXT, "eos_token_id": 0, "hidden_size": DIMENSIONS}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def text_model(model_folder: Path) -> Iterator[TextModel]:
    model = TextModel.load(model_folder)
    yield model
    model.close()


@pytest.fixture(scope="session")
def chat_template(model_folder: Path) -> ChatTemplate:
    """Compiled once, which takes longer than most tests."""
    return ChatTemplate.load(model_folder)


@pytest.fixture
async def services(valkey: str, text_model: TextModel, chat_template: ChatTemplate) -> AsyncIterator[ScriptedServices]:
    redis, blocking = _connect_patiently(valkey), BlockingRedis.from_url(valkey)
    view = PoolView(name=POOL, text_model=text_model, tunables=Tunables(), max_model_len=CONTEXT, num_engines=1)
    door, observer, drain = Door(redis, spent_before=SpentBefore(_read_ledger)), RecordingObserver(), DrainState()
    gateway, predictor = ScriptedGateway(view, door), Predictor(redis, [POOL, PoolName("bulk"), PoolName("spare")])
    starter = Starter(gateway=gateway, door=door, observer=observer, drain=drain, predictor=predictor)
    chat_templates = {MODEL: chat_template}
    authenticator = Authenticator(redis)
    yield ScriptedServices(
        redis=redis,
        blocking_redis=blocking,
        authenticator=authenticator,
        gateway=gateway,
        door=door,
        chat_templates=chat_templates,
        observer=observer,
        exposition=Exposition(redis, requests=RequestMetrics({POOL: MODEL}), models={POOL: MODEL}),
        drain=drain,
        predictor=predictor,
        starter=starter,
        prompter=Prompter(starter=starter, chat_templates=chat_templates),
    )
    await authenticator.close()
    await redis.aclose()
    blocking.close()


def _connect_patiently(url: str) -> Redis:
    """As in production, but a burst on a slow machine waits for a connection as long as it takes."""
    return Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=32, timeout=None))


async def _read_ledger(subject: str, since_day: datetime.date) -> int:
    return await in_thread(used_tokens, subject, since_day=since_day)


@pytest.fixture
def gateway(services: ScriptedServices) -> ScriptedGateway:
    return services.gateway


@pytest.fixture
def application(services: ScriptedServices) -> Any:
    return build_application(services)


@pytest.fixture
def key(transactional_db: None) -> KeyText:
    """A key with every scope that the API knows, of a tenant that may send every priority."""
    ensure_pool(POOL, MODEL)
    ensure_tenant("tests", most_urgent=-MAX_PRIORITY)
    return create_key("tests", scopes=["generate", "observe", "operate", "admin"])


@pytest.fixture
async def client(application: Any, key: KeyText) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP straight into the application, with a key."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {key.text}"},
    ) as client:
        yield client


@pytest.fixture
async def sdk(application: Any, key: KeyText) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    http = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost")
    async with openai.AsyncOpenAI(
        api_key=key.text, base_url="http://localhost/v1", http_client=http, max_retries=0
    ) as sdk:
        yield sdk


class Connection:
    """One HTTP request by hand: what is sent can be watched as it comes, and the client can go away."""

    def __init__(self, application: Any, key: KeyText, path: str, body: dict[str, Any]) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
            "headers": [
                (b"authorization", f"Bearer {key.text}".encode()),
                (b"content-type", b"application/json"),
                (b"host", b"localhost"),
            ],
        }
        self.task = asyncio.create_task(application(scope, self._incoming.get, self._outgoing.put))

    async def receive(self) -> dict[str, Any]:
        """The next message of the response."""
        return await asyncio.wait_for(self._outgoing.get(), 20)

    async def receive_rest(self) -> bytes:
        """The body up to its end."""
        body = b""
        while True:
            message = await self.receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                return body

    @property
    def has_answered(self) -> bool:
        return not self._outgoing.empty()

    def go_away(self) -> None:
        """The client closes its end."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def leave(self) -> None:
        """The client closes its end; returns when the application is done with it."""
        self.go_away()
        await asyncio.wait_for(self.task, 20)


@pytest.fixture
def connect(application: Any, key: KeyText) -> Callable[[str, dict[str, Any]], Connection]:
    return lambda path, body: Connection(application, key, path, body)
