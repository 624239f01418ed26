"""A scripted gateway that tells of tokens: what it says, and the same as clients are to see it."""

from __future__ import annotations

from typing import Any

from serving.contracts.messages import TokenLogprobs
from serving.gateway.generation import ChoiceDelta, Generation
from serving.gateway.logprobs import Candidate, PromptEntries, TokenEntry
from serving.gateway.text.token_spelling import Spelling
from tests.api.conftest import MODEL, ScriptedGateway, say_hello

QUESTION = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": QUESTION}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
EURO = "€".encode()


def _entry(token_id: int, data: bytes | None, logprob: float, offset: int, length: int, *, num_top: int) -> TokenEntry:
    name = "<|end|>" if data is None else data.decode(errors="replace").replace("\ufffd", f"bytes:\\x{data[0]:02x}")
    top = [Candidate(token_id, Spelling(name, data), logprob), Candidate(7, Spelling("seven", b"seven"), -9999.0)]
    return TokenEntry(token_id, Spelling(name, data), logprob, tuple(top[:num_top]), offset, length)


CONTENT = [
    ("a", -0.25, [97]),
    *[(f"bytes:\\x{byte:02x}", -1.0, [byte]) for byte in EURO],
    ("<|end|>", -2.0, None),
]


def let_tell(gateway: ScriptedGateway) -> None:
    """Let it say "a€" to each request, the second character in three tokens, and end; and tell what is asked for.
    Prompts are embedded."""

    def say(generation: Generation) -> list[Any]:
        if generation.params[0].embeds:
            return say_hello(generation)
        pieces: list[Any] = []
        for choice, params in enumerate(generation.params):
            count = params.num_logprobs
            entries = [_entry(1, b"a", -0.25, 0, 1, num_top=count or 0)]
            entries += [_entry(2 + i, EURO[i : i + 1], -1.0, 1, i // 2, num_top=count or 0) for i in range(3)]
            entries += [_entry(9, None, -2.0, 2, 0, num_top=count or 0)]
            groups = ((), ()) if count is None else (tuple(entries[:1]), tuple(entries[1:]))
            known, rest = (None if count is None else group for group in groups)
            prompt = None
            if params.num_prompt_logprobs is not None:
                ids = generation.prompt_ids
                found = [TokenLogprobs(-id_ / 100, [id_, 7], [-0.1, -0.2]) for id_ in ids[1:]]
                prompt = PromptEntries(gateway.view.text_model, ids, found)
            pieces.append(ChoiceDelta(choice, "a", 1, logprobs=known, prompt=prompt))
            pieces.append(ChoiceDelta(choice, "€", 4, "stop", logprobs=rest))
        return pieces

    gateway.script = say
