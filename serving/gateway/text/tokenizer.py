"""A model's tokenizer: text to token ids and back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeGuard

from tokenizers import Tokenizer

from serving.contracts.errors import InvalidValue
from serving.gateway.text.folder import ModelTextProblem, read_object, read_optional_object
from serving.gateway.text.grammar_checks import GrammarChecks
from serving.gateway.text.token_decoding import TokenDecoding
from serving.gateway.text.token_spelling import TokenSpeller

_INLINE_CHARACTERS = 4096
"""Text up to this length is encoded at once (about a millisecond); longer text on a thread of its own."""
_ENCODING_THREADS = 2
_DEFAULTS_BY_TYPE: dict[str, dict[str, int]] = {
    "gemma3_text": {"vocab_size": 262_208, "max_position_embeddings": 131_072, "hidden_size": 2304},
}
"""What the published files of a type of models leave open, as transformers takes it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """What a model's folder says of text. Immutable and safe to share between threads; build one with `load`.

    `vocab_size` is the number of token ids that the model itself knows (rows of its embedding), `max_model_len` its
    longest context in tokens, `special_ids` the tokens that are never part of a text, `embedding_size` how many numbers
    its embeddings have, None where the folder does not say.
    """

    name: str
    vocab_size: int
    max_model_len: int
    embedding_size: int | None
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int]
    decoding: TokenDecoding
    speller: TokenSpeller
    grammars: GrammarChecks
    _tokenizer: Tokenizer
    _may_exceed_vocabulary: bool
    _executor: ThreadPoolExecutor

    @classmethod
    def load(cls, folder: Path) -> TextModel:
        """Read `tokenizer.json` and `config.json` (and `generation_config.json`) of a Hugging Face model folder.

        Raises `ModelTextProblem`, naming folder and file, for what is missing or makes no sense.
        """
        whole = read_object(folder, "config.json")
        config = _text_part(whole)
        definition = read_object(folder, "tokenizer.json")
        tokenizer = _build_tokenizer(folder)
        special_ids = frozenset(id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        vocab_size = _positive_integer(folder, config, "vocab_size")
        eos_token_ids = _read_eos_token_ids(folder, whole, config)
        decoding = TokenDecoding.of(tokenizer, definition)
        return cls(
            name=folder.name,
            vocab_size=vocab_size,
            max_model_len=_positive_integer(folder, config, "max_position_embeddings"),
            embedding_size=size if _is_integer(size := config.get("hidden_size")) and size > 0 else None,
            eos_token_ids=eos_token_ids,
            special_ids=special_ids,
            decoding=decoding,
            speller=TokenSpeller(decoding),
            grammars=GrammarChecks(folder, vocab_size=vocab_size, eos_token_ids=eos_token_ids),
            _tokenizer=tokenizer,
            _may_exceed_vocabulary=max(tokenizer.get_vocab().values(), default=0) >= vocab_size,
            _executor=ThreadPoolExecutor(_ENCODING_THREADS, thread_name_prefix="encode"),
        )

    def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """Token ids of `text`; with `add_special_tokens`, what the tokenizer itself puts around a text (BOS).

        The text of a special token, such as `<|im_end|>`, becomes that token wherever it stands, as in Hugging Face
        Transformers. Raises `InvalidValue` for `param` where the text holds half a surrogate pair, which no encoding
        of text admits, or a token that the model does not know. Slow for long text: see `encode_async`.
        """
        _refuse_surrogates(text, param)
        # The batch call, unlike the single one, lets other Python threads run meanwhile.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if self._may_exceed_vocabulary and max(ids, default=0) >= self.vocab_size:
            raise InvalidValue(param, text, "text made of tokens that the model knows")
        return ids

    async def encode_async(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """As `encode`, but long text is encoded on one of a few threads, so that streams go on meanwhile.

        How many texts may wait for a thread is bounded by who lets requests in.
        """
        if len(text) <= _INLINE_CHARACTERS:
            return self.encode(text, add_special_tokens=add_special_tokens, param=param)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self.encode(text, add_special_tokens=add_special_tokens, param=param)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; U+FFFD stands for bytes that are no UTF-8."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    async def write_out_async(self, ids: Sequence[int], *, param: str) -> str:
        """The text of `ids`, special tokens written out, so that encoding it gives `ids` again wherever a tokenizer has
        one way to split a text. Many ids are decoded on one of a few threads, as long texts are encoded.

        Raises `InvalidValue` for `param` where an id is no token of the model.
        """
        if len(ids) <= _INLINE_CHARACTERS:
            return self._write_out(ids, param=param)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._write_out(ids, param=param)
        )

    def write_out(self, ids: Sequence[int]) -> str:
        """As `write_out_async`, on the caller's thread, of ids that are known to be the model's."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _write_out(self, ids: Sequence[int], *, param: str) -> str:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size or self._tokenizer.id_to_token(token_id) is None:
                raise InvalidValue(param, token_id, "made of ids of tokens that the model knows")
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def close(self) -> None:
        """End the threads; texts already waiting are encoded first."""
        self.grammars.close()
        self._executor.shutdown(wait=False)


def _build_tokenizer(folder: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # The library raises plain `Exception` for whatever it cannot read.
        raise ModelTextProblem(folder, "tokenizer.json", f"is no usable tokenizer ({error})") from error
    # Left over from training in some folders; a server neither cuts nor pads in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _refuse_surrogates(text: str, param: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidValue(param, text, "valid Unicode without unpaired surrogates") from None


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """What describes the part of a model that reads and writes text: an object of its own in models that see images
    too, which may leave what all models of its type have in common to who reads it."""
    part = config.get("text_config")
    if not isinstance(part, dict):
        return config
    return {**_DEFAULTS_BY_TYPE.get(str(part.get("model_type")), {}), **part}


def _read_eos_token_ids(folder: Path, *configs: dict[str, Any]) -> frozenset[int]:
    found: set[int] = set()
    generation = read_optional_object(folder, "generation_config.json")
    for file, source in (*(("config.json", config) for config in configs), ("generation_config.json", generation)):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_integer(id_) and id_ >= 0 for id_ in ids):
            raise ModelTextProblem(folder, file, f"has an eos_token_id that is no token id: {value!r}")
        found.update(ids)
    return frozenset(found)


def _positive_integer(folder: Path, config: dict[str, Any], field: str) -> int:
    value = config.get(field)
    if not _is_integer(value) or value < 1:
        raise ModelTextProblem(folder, "config.json", f"needs {field}, a positive integer, not {value!r}")
    return value


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
