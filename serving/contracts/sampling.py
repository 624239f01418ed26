"""How one sequence's next token is chosen, and when it ends."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from serving.contracts.errors import InvalidValue

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_GRAMMAR_BYTES = 64 * 1024

GRAMMAR_FAULT = "the grammar cannot be followed"
"""How the message of a `Finished` with reason `error` begins where not the engine is to blame but the grammar."""

GrammarKind = Literal["json_schema", "json_object", "regex", "lark"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a text must be: JSON after the schema in `text`, any JSON object (`text` is empty), or all of what a regular
    expression or a Lark grammar describes. Immutable; raises `InvalidValue` for a text that is empty or longer than 64
    KiB in UTF-8. Whether it makes sense is for those to say who compile it."""

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        num_bytes = len(self.text.encode(errors="surrogatepass"))
        if self.kind == "json_object":
            if num_bytes:
                raise InvalidValue("grammar", f"{num_bytes} bytes", "empty where any JSON object will do")
        elif not 0 < num_bytes <= MAX_GRAMMAR_BYTES:
            raise InvalidValue("grammar", f"{num_bytes} bytes", f"a text of 1 to {MAX_GRAMMAR_BYTES} bytes in UTF-8")


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling of one sequence. Immutable; raises `InvalidValue` for a value out of bounds, NaN and infinity included.

    `temperature` 0 is greedy; `top_p` 1, `top_k` 0 and `min_p` 0 are off. `seed` is always set: every draw is a
    function of (seed, choice, position), so that preemption, batch company and failover change none.

    Presence and frequency penalties count generated tokens only, `repetition_penalty` (1 is off) prompt and generated
    ones. `logit_bias` holds pairs of token id and what is added to its logit. `num_logprobs` and `num_prompt_logprobs`
    ask for the logarithms of probabilities, of the tokens themselves and of that many most probable ones (0 to 20).
    With a `grammar`, only tokens are chosen that it admits, and EOS where the text may end there.

    With `embeds`, no token is chosen at all (`max_tokens` is 0): the sequence ends with its prompt's embedding.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    embeds: bool = False

    def __post_init__(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 2.0)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, 0, 2**31 - 1)
        _check_int("max_tokens", self.max_tokens, *((0, 0) if self.embeds else (1, 2**31 - 1)))
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_int("seed", self.seed, 0, MAX_SEED)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, 2**31 - 1)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidValue("logit_bias", f"{len(self.logit_bias)} entries", f"at most {MAX_LOGIT_BIASES} entries")
        for token_id, bias in self.logit_bias:
            _check_int("logit_bias", token_id, 0, 2**31 - 1)
            _check_float("logit_bias", bias, -100.0, 100.0)
        for name in ("num_logprobs", "num_prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)
        if self.grammar is not None and self.ignore_eos:
            raise InvalidValue("ignore_eos", self.ignore_eos, "false where a grammar says where the text ends")
        if self.embeds and (self.num_prompt_logprobs is not None or self.num_logprobs is not None):
            raise InvalidValue("embeds", self.embeds, "false where log probabilities are asked for")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0 or self.top_p == 0.0 or self.top_k == 1

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every position of the prompt has to be computed for it, though its keys and values may be cached."""
        return self.embeds or self.num_prompt_logprobs is not None


def _check_float(field: str, value: float, low: float, high: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        raise InvalidValue(field, value, f"a number from {low:g} to {high:g}")


def _check_int(field: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidValue(field, value, f"an integer from {low} to {high}")
