"""From checked bodies to what the gateway understands. Pure functions."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from serving.api.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest, Message, StreamOptions
from serving.contracts.errors import ContextLengthExceeded, InvalidValue
from serving.contracts.sampling import MAX_SEED, Grammar, SamplingParams

DEFAULT_COMPLETION_TOKENS = 16
MAX_TOLD_OF_PROMPTS = 200_000
"""Log probabilities of prompts in one answer, at most: about 12 MB of JSON, and a little more than a context of 8,192
tokens with the 20 most probable at each place."""
_BYTES_A_TOKEN = 3
"""A cautious guess for text that was not tokenised yet: English has about four."""
_MESSAGE_OVERHEAD_TOKENS = 8


def num_choices_of(request: GenerationRequest) -> int:
    """How many texts are wanted for a prompt."""
    return 1 if request.n is None else request.n


def num_sequences_of(request: GenerationRequest) -> int:
    """How many texts are generated for a prompt."""
    return max(num_choices_of(request), (isinstance(request, CompletionRequest) and request.best_of) or 0)


def picks_best(request: GenerationRequest) -> bool:
    """Whether more is generated than is given."""
    return num_sequences_of(request) > num_choices_of(request)


def stops_of(request: GenerationRequest) -> tuple[str, ...]:
    """Stop strings without repetition."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(dict.fromkeys(stops))


def choose_seed(request: GenerationRequest) -> int:
    """The seed of every choice: the one given, taken modulo 2⁶³, or a random one. Choices differ by their index."""
    return secrets.randbits(63) if request.seed is None else request.seed & MAX_SEED


def limit_of(request: GenerationRequest) -> int | None:
    """The limit on generated tokens that was asked for. Raises `InvalidValue` for two that differ."""
    if not isinstance(request, ChatCompletionRequest) or request.max_completion_tokens is None:
        return request.max_tokens
    if request.max_tokens not in (None, request.max_completion_tokens):
        raise InvalidValue("max_tokens", request.max_tokens, "equal to max_completion_tokens where both are given")
    return request.max_completion_tokens


def decide_max_tokens(request: GenerationRequest, *, num_prompt_tokens: int, max_context_tokens: int) -> int:
    """Most tokens to generate, a choice: as asked for; else 16 for a completion, the rest of the context for chat.

    Raises `ContextLengthExceeded` where prompt and answer together exceed `max_context_tokens`: nothing is cut off in
    silence, on neither endpoint.
    """
    wanted = limit_of(request)
    if is_prompt_only(request):
        return _decide_for_prompt_only(num_prompt_tokens, max_context_tokens=max_context_tokens)
    if wanted is None and isinstance(request, CompletionRequest):
        wanted = DEFAULT_COMPLETION_TOKENS
    if wanted is None:
        wanted = max(max_context_tokens - num_prompt_tokens, request.min_tokens or 0, 1)
    if num_prompt_tokens + wanted > max_context_tokens:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_context_tokens} tokens. However, you requested "
            f"{num_prompt_tokens + wanted} tokens ({num_prompt_tokens} in the prompt, {wanted} for the completion).",
            param="messages" if isinstance(request, ChatCompletionRequest) else "prompt",
        )
    return wanted


def _decide_for_prompt_only(num_prompt_tokens: int, *, max_context_tokens: int) -> int:
    """One token, which no engine goes below, and nobody is shown."""
    if num_prompt_tokens >= max_context_tokens:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_context_tokens} tokens, and a prompt that is echoed with "
            f"max_tokens 0 leaves one of them free: it has at most {max_context_tokens - 1} tokens, not "
            f"{num_prompt_tokens}.",
            param="prompt",
        )
    return 1


def sampling_of(
    request: GenerationRequest,
    num_prompt_tokens: int,
    *,
    max_context_tokens: int,
    seed: int,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """How each choice is sampled. Raises `InvalidValue` and `ContextLengthExceeded`."""
    _check_told_of_prompts(request, num_prompt_tokens)
    return SamplingParams(
        max_tokens=decide_max_tokens(
            request, num_prompt_tokens=num_prompt_tokens, max_context_tokens=max_context_tokens
        ),
        seed=seed,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        min_p=request.min_p or 0.0,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(dict.fromkeys(request.stop_token_ids or ())),
        ignore_eos=request.ignore_eos is True,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        logit_bias=tuple((int(token_id), bias) for token_id, bias in (request.logit_bias or {}).items()),
        num_logprobs=0 if picks_best(request) and num_logprobs_of(request) is None else num_logprobs_of(request),
        num_prompt_logprobs=num_prompt_logprobs_of(request),
        grammar=grammar,
    )


def num_logprobs_of(request: GenerationRequest) -> int | None:
    """How many most probable tokens are wanted beside each one's own log probability; None where not even that."""
    if isinstance(request, ChatCompletionRequest):
        return (request.top_logprobs or 0) if request.logprobs else None
    return request.logprobs if isinstance(request, CompletionRequest) else None


def num_prompt_logprobs_of(request: GenerationRequest) -> int | None:
    """The same for the prompt, which an echo shows like the rest."""
    echoed = num_logprobs_of(request) if echoes(request) else None
    counts = [count for count in (request.prompt_logprobs, echoed) if count is not None]
    return max(counts, default=None)


def _check_told_of_prompts(request: GenerationRequest, num_prompt_tokens: int) -> None:
    """Raise `InvalidValue` where an answer would tell too much of prompts as long as this one."""
    count = num_prompt_logprobs_of(request)
    if count is None:
        return
    times = num_choices_of(request) * len(prompts_of(request)) if isinstance(request, CompletionRequest) else 1
    total = times * num_prompt_tokens * (1 + count)
    if total > MAX_TOLD_OF_PROMPTS:
        field = "prompt_logprobs" if request.prompt_logprobs == count else "logprobs"
        bounds = (
            f"so small that choices x prompt tokens x (1 + {field}) of all prompts come to at most "
            f"{MAX_TOLD_OF_PROMPTS}: {total} are too many for one answer"
        )
        raise InvalidValue(field, count, bounds)


def echoes(request: GenerationRequest) -> bool:
    """Whether the text is to begin with the prompt."""
    return isinstance(request, CompletionRequest) and request.echo is True


def is_prompt_only(request: GenerationRequest) -> bool:
    """Whether nothing but the prompt is wanted."""
    return echoes(request) and request.max_tokens == 0


def check_request(request: GenerationRequest, *, vocab_size: int) -> None:
    """What can be told before anything is tokenised; raises `InvalidValue`."""
    check_token_ids("stop_token_ids", request.stop_token_ids or (), vocab_size=vocab_size)
    _check_logit_bias(request.logit_bias or {}, vocab_size=vocab_size)
    _check_logprobs(request)
    wanted = limit_of(request)
    if wanted == 0 and not echoes(request):
        raise InvalidValue("max_tokens", 0, "an integer of at least 1 (0 with echo)")
    if wanted is not None and (request.min_tokens or 0) > wanted:
        raise InvalidValue("min_tokens", request.min_tokens, f"an integer from 0 to max_tokens, {wanted}")
    _check_best_of(request)
    # An object without a word in it asks for nothing.
    if request.stream is not True and request.stream_options not in (None, StreamOptions()):
        raise InvalidValue("stream_options", "what a plain answer cannot follow", "left out unless stream is true")


def _check_best_of(request: GenerationRequest) -> None:
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if best_of is not None and best_of < num_choices_of(request):
        raise InvalidValue("best_of", best_of, f"an integer of at least n, {num_choices_of(request)}")
    if picks_best(request) and request.stream:
        raise InvalidValue("best_of", best_of, "n where stream is true: which texts are best is known at the end alone")


def _check_logit_bias(biases: dict[str, float], *, vocab_size: int) -> None:
    for written in biases:
        is_plain = written.isascii() and written.isdigit() and len(written) < 20 and str(int(written)) == written
        if not is_plain or int(written) >= vocab_size:
            bounds = f"made of token ids from 0 to {vocab_size - 1} and numbers from -100 to 100"
            raise InvalidValue("logit_bias", written, bounds)


def _check_logprobs(request: GenerationRequest) -> None:
    if isinstance(request, ChatCompletionRequest) and request.top_logprobs is not None and not request.logprobs:
        raise InvalidValue("top_logprobs", request.top_logprobs, "left out unless logprobs is true")
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidValue("prompt_logprobs", request.prompt_logprobs, "left out where stream is true")


def check_token_ids(field: str, ids: Any, *, vocab_size: int) -> None:
    """Raise `InvalidValue` for an id that the model does not know."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidValue(field, token_id, f"made of token ids from 0 to {vocab_size - 1}")


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts, each a text or token ids."""
    prompt: Any = request.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def estimate_text_tokens(text: str, *, max_context_tokens: int) -> int:
    """Tokens that a text is taken to have before it is tokenised, within what the context can hold."""
    return max(1, min(_num_bytes(text) // _BYTES_A_TOKEN, max_context_tokens))


def estimate_chat_tokens(
    messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None, max_context_tokens: int
) -> int:
    """As `estimate_text_tokens`, for a conversation and the tools that its prompt describes."""
    num_bytes = sum(_num_bytes(message["content"] or "") for message in messages)
    if tools:
        num_bytes += len(msgspec.json.encode(tools))
    guess = num_bytes // _BYTES_A_TOKEN + _MESSAGE_OVERHEAD_TOKENS * len(messages)
    return max(1, min(guess, max_context_tokens))


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))  # half a pair is refused where the text is tokenised


def messages_of(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """The conversation as chat templates know it: text parts joined by line ends, absent fields left out.

    Raises `InvalidValue` for a message without content that is no assistant's call of tools.
    """
    return plain_messages(request.messages)


def plain_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """As `messages_of`."""
    return [_message_of(message, index=index) for index, message in enumerate(messages)]


def _message_of(message: Message, *, index: int) -> dict[str, Any]:
    calls_tools = message.role == "assistant" and bool(message.tool_calls)
    if message.content is None and not calls_tools:
        raise InvalidValue(f"messages[{index}].content", None, "a text or a list of text parts")
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    for name in ("name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain
