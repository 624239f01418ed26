"""Grammars as llguidance reads them: what the door lets in is what engines run."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from serving.contracts.sampling import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_KEPT_GRAMMARS = 256
_WRITTEN_LIMITS = LLParserLimits(
    max_lexer_states=50_000, step_lexer_fuel=50_000, step_max_items=2_000, max_items_in_row=500, verbose_errors=False
)
"""Lexer states take about 1.5 kB each: a hostile grammar fails there instead of taking the process's memory. The others
bound what one token of one text costs to milliseconds, where the library's own let an ambiguous grammar of one line
hold up every text of the engine for half a second, token by token."""
_SCHEMA_LIMITS = LLParserLimits(
    max_lexer_states=50_000, step_lexer_fuel=50_000, step_max_items=6_000, max_items_in_row=1_500, verbose_errors=False
)
"""A schema has no such ambiguity, and each property that may be left out takes several items of a row: some 300 fit."""
_LONGEST_REASON = 400
_TRIED_TOKENS = 6
_ANY_OBJECT = '{"type":"object"}'
_JSON_OPTIONS: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}",
}
"""Nothing unsupported is passed over in silence; and no model fills its answer with white space, as small ones do."""
_PASSED_OVER = frozenset({"divisibleBy", "disallow", "extends"})
"""Keywords of old drafts that the library takes for remarks, as it does some where they are true (see `_is_unheeded`);
all others that mean something it either heeds or refuses."""
_OF_SCHEMAS = frozenset({"additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"})
_OF_NAMED_SCHEMAS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_UNFORCED = '%llguidance {"no_forcing":true}'
"""Otherwise the library looks, at each token, for all that has to follow, and tokenises it: for a long constant that
takes tens of milliseconds, again and again."""
_UNHEEDED = re.compile(
    r"^[ \t]*(?:[?!]?\w+[ \t]*\[[^\]\n]*\b(?P<attribute>temperature|capture)\b|(?P<directive>%llguidance)\b)",
    re.MULTILINE,
)
"""Attributes of rules that would ask something of others than the library, and its own settings."""
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| ")


class GrammarProblem(Exception):
    """A grammar that cannot be used; the message says why, in a few lines at most."""


class Grammars:
    """Owns a model's tokens as the library knows them and the grammars compiled lately, 256 at most; any thread may
    ask.

    Compiling takes a millisecond for what is usual and, within the library's limits, tens of them for what is not.
    """

    def __init__(self, tokenizer_json: str, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """Read a `tokenizer.json`, which takes some tenths of a second; raises `GrammarProblem` for one that the
        library cannot use, and where there is no token to end a text with."""
        ends = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
        if not ends:
            raise GrammarProblem("the model has no token that ends a text")
        try:
            self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=ends)
        except ValueError as error:
            raise GrammarProblem(_shortened(str(error))) from None
        self._compiled = functools.lru_cache(maxsize=_KEPT_GRAMMARS)(self._compile)

    @classmethod
    def read(cls, folder: Path, *, vocab_size: int, eos_token_ids: Iterable[int]) -> Grammars:
        """Those of the model in `folder`; raises `GrammarProblem`, also where its tokenizer cannot be read."""
        try:
            tokenizer_json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise GrammarProblem("its tokenizer.json cannot be read") from None
        return cls(tokenizer_json, vocab_size=vocab_size, eos_token_ids=eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """Tokens that masks are about."""
        return int(self._tokenizer.vocab_size)

    def compile(self, grammar: Grammar) -> GrammarMatcher:
        """A text that follows `grammar` and has not begun; raises `GrammarProblem` where there can be none."""
        return GrammarMatcher(self._compiled(grammar).deep_copy())

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, _definition_of(grammar), log_level=0, limits=_limits_of(grammar))
        except ValueError as error:
            raise GrammarProblem(_shortened(str(error))) from None
        # Much is found out only where a first token is looked for, and of the copies none has to do so again.
        fill_next_token_bitmask(matcher, allocate_token_bitmask(1, self.vocab_size))
        if matcher.is_error():
            reason = _reason_of(matcher)
            # The client knows nothing of the Lark around a schema or an expression.
            raise GrammarProblem(reason if grammar.kind == "lark" else _PLACE.sub("", reason))
        if warnings := matcher.get_grammar_warnings():
            raise GrammarProblem(_shortened("; ".join(warnings)))
        self._try_out(GrammarMatcher(matcher.deep_copy()))
        return matcher

    def _try_out(self, text: GrammarMatcher) -> None:
        """Write the first few tokens of a text: a grammar that is too large for the limits shows it there at the
        latest, as a rule, and not in a client's answer."""
        row = allocate_token_bitmask(1, self.vocab_size)[0]
        for _ in range(_TRIED_TOKENS):
            text.fill(row)
            admitted = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            going_on = admitted[~np.isin(admitted, self._tokenizer.eos_tokens)]
            if not len(going_on):
                return
            text.advance([int(going_on[0])])


class GrammarMatcher:
    """Owns how far one text has come in its grammar; used by one thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def advance(self, token_ids: list[int]) -> None:
        """Go on by these tokens; raises `GrammarProblem` where the grammar does not admit them."""
        if token_ids and not self._matcher.consume_tokens(token_ids):
            raise GrammarProblem(_reason_of(self._matcher))

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Set in `row`, `[ceil(vocab_size / 32)]`, a bit for each token that may follow, the lowest bit first, and
        clear all others; EOS may where the text may end. Raises `GrammarProblem` where that takes more than the
        library's limits."""
        fill_next_token_bitmask(self._matcher, row[None])
        if self._matcher.is_error():
            raise GrammarProblem(_reason_of(self._matcher))


def _definition_of(grammar: Grammar) -> str:
    """What the library compiles; raises ValueError for a schema that is no JSON object, and for what has no effect."""
    return LLMatcher.grammar_from_lark(f"{_lark_of(grammar)}\n{_UNFORCED}")


def _lark_of(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_object":
            return _lark_of_schema(_ANY_OBJECT)
        case "json_schema":
            return _lark_of_schema(grammar.text)
        case "regex":
            return str(_only_part(LLMatcher.grammar_from_regex(grammar.text))["lark_grammar"])
        case "lark":
            if found := _UNHEEDED.search(grammar.text):
                raise ValueError(f"{found['attribute'] or found['directive']} is not supported")
            return grammar.text


def _lark_of_schema(text: str) -> str:
    schema = _only_part(LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS))["json_schema"]
    if passed_over := sorted({key for part in _parts_of(schema) for key in part if _is_unheeded(key, part)}):
        raise ValueError(f"unsupported keywords: {', '.join(passed_over)}")
    return "start: %json " + msgspec.json.encode(schema).decode()


def _is_unheeded(key: str, part: Mapping[str, Any]) -> bool:
    """OpenAPI says by `nullable` that null will do; draft 4 by `exclusiveMinimum` what kind of bound `minimum` is."""
    match key:
        case "nullable":
            return part[key] is not False
        case "exclusiveMinimum":
            return part[key] is True and "minimum" not in part
        case "exclusiveMaximum":
            return part[key] is True and "maximum" not in part
        case _:
            return key in _PASSED_OVER


def _parts_of(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema itself and those within it: where a name is a keyword, and not a property's or a value's."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        inner: Iterable[Any] = ()
        if key in _OF_NAMED_SCHEMAS and isinstance(value, dict):
            inner = value.values()
        elif key in _OF_SCHEMAS:
            inner = value if isinstance(value, list) else [value]
        for part in inner:
            yield from _parts_of(part)


def _limits_of(grammar: Grammar) -> LLParserLimits:
    return _SCHEMA_LIMITS if grammar.kind in ("json_schema", "json_object") else _WRITTEN_LIMITS


def _only_part(definition: str) -> dict[str, Any]:
    """What the library makes of one schema or expression: a list of a single grammar."""
    (part,) = msgspec.json.decode(definition)["grammars"]
    return cast("dict[str, Any]", part)


def _reason_of(matcher: LLMatcher) -> str:
    reason = _EXCERPT.split(matcher.get_error().removesuffix("<non-verbose/>"), maxsplit=1)[0].strip()
    return "no text follows it" if reason.startswith("NoExtension") else _shortened(reason)


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + "…"
