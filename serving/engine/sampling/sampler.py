"""Choosing the next token of every sampled row in one go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from serving.contracts.messages import TokenLogprobs
from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk
from serving.engine.recent import RecentMap
from serving.engine.sampling.blocks import is_on_cpu
from serving.engine.sampling.filters import Draws
from serving.engine.sampling.grammars import GrammarMasks, MaskProvider, Masks, count_admitted, forbid
from serving.engine.sampling.logprobs import ComingLogprobs, begin_logprobs
from serving.engine.sampling.penalties import Penalties, TokenBooks
from serving.engine.transfers import Download, upload

_MAX_REMEMBERED = 1024
"""Rows whose lists are kept: as many as may run, so that those who take turns find theirs."""

NOT_FINITE = "the model's output is not finite"
"""The error of a row whose numbers overflowed or were never numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """Token ids in the order of the rows; those named in `errors` mean nothing. `logprobs` of rows that asked."""

    token_ids: list[int]
    errors: dict[int, str]
    logprobs: dict[int, TokenLogprobs] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Bias:
    """What is added to logits: `values`, at `rows` and `token_ids`."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Bans:
    """Tokens that would end a sequence before its `min_tokens`: at `rows` and `token_ids`, while the row's index is
    below `until`."""

    rows: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64]
    until: npt.NDArray[np.int64]

    def emptying(self, rows: Sequence[int], masks: Masks) -> list[int]:
        """Those of `rows` in which all that their `masks` admit is banned."""
        banned = [self.token_ids[self.rows == row] for row in rows]
        return [
            row
            for row, mask, token_ids in zip(rows, masks, banned, strict=True)
            if len(token_ids) and count_admitted(mask) == count_admitted(mask, token_ids)
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Lists:
    """The lists that one row's `params` hold, as arrays: long ones take longer to read than a batch to sample."""

    params: SamplingParams
    biased_ids: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float32]
    banned_ids: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class _Settings:
    """What a batch's rows ask for, row by row, laid out once for as long as the batch stays the same."""

    params: list[SamplingParams]
    penalties: Penalties | None
    bias: _Bias | None
    bans: _Bans | None
    grammar_rows: list[int]
    draws: Draws | None
    logprobs: _LogprobRows | None


@dataclasses.dataclass(frozen=True, slots=True)
class _LogprobRows:
    """The rows that asked for log probabilities (`indices`; on the device, `rows`), and how many each asked for."""

    indices: list[int]
    rows: torch.Tensor
    num_top: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """Rows whose tokens the device chooses: `token_ids` `[num_rows]`, on the device, all of the vocabulary, whatever
    went wrong; and where a download has what the host is told of them."""

    token_ids: torch.Tensor
    broken: dict[int, str] = dataclasses.field(default_factory=dict)
    chosen: int | None = None
    highest: int | None = None
    logprob_rows: Sequence[int] = ()
    logprobs: ComingLogprobs | None = None

    def finish(self, download: Download) -> Sampled:
        """What was chosen, when the download has come."""
        if self.chosen is None or self.highest is None:
            return Sampled([], {})
        errors = _errors(download.read(self.highest)) | self.broken
        logprobs = {}
        if self.logprobs is not None:
            entries = zip(self.logprob_rows, self.logprobs.finish(download), strict=True)
            logprobs = {row: entry for row, entry in entries if row not in errors}
        return Sampled(download.read(self.chosen).tolist(), errors, logprobs)


class Sampler:
    """Owns the settings of the last batch, the lists of the rows lately seen, the books of their penalised tokens and
    how far their grammars have come; called by the engine's thread.

    A row's token is a function of its logits and its chunk alone, whoever shares the batch: filters are thresholds of
    probability, found from sorted values and never from sorted positions, and the draw inverts the cumulative
    distribution in the order of token ids at one number made from seed, choice and index.
    """

    def __init__(self, eos_token_ids: frozenset[int], *, masks: MaskProvider | None = None) -> None:
        """Without `masks`, a row that follows a grammar is an error."""
        self._eos_token_ids = eos_token_ids
        self._books = TokenBooks()
        self._grammars = GrammarMasks(masks)
        self._settings: _Settings | None = None
        self._lists: RecentMap[int, _Lists] = RecentMap(_MAX_REMEMBERED)

    def sample(self, logits: torch.Tensor, chunks: Sequence[PlannedChunk]) -> Sampled:
        """Choose the next token of each chunk from its row of `logits`, fp32 `[num_rows, vocab_size]`, which change.

        In this order: log probabilities are read from the logits as the model gave them; repetition penalty, frequency
        and presence penalties; `logit_bias`, which a penalty is not to scale; bans (`min_tokens`), which no bias lifts;
        what a grammar does not admit, and where it admits nothing but what is banned, that is not banned; temperature,
        top_k, top_p of what top_k left, min_p relative to the most probable token. Tokens as probable as the last one
        kept by top_k or top_p are kept too. What nobody in the batch asks for is not computed.

        A row whose logits are not finite, or that has no token left, or whose grammar cannot be followed is reported in
        `errors`; the others are not affected.
        """
        download = Download(logits.device)
        sampling = self.begin(logits, chunks, download)
        download.send()
        download.wait()
        return sampling.finish(download)

    def begin(self, logits: torch.Tensor, chunks: Sequence[PlannedChunk], download: Download) -> Sampling:
        """As `sample`, but nothing is awaited: the device is given all that there is to compute, and `download` is
        added what the host must be told before it can `finish`."""
        if not chunks:
            return Sampling(torch.empty(0, dtype=torch.int64, device=logits.device))
        settings = self._settings_of(chunks, vocab_size=logits.shape[-1], device=logits.device)
        asked = logits[settings.logprobs.rows] if settings.logprobs is not None else None
        if settings.penalties is not None:
            self._books.penalise(logits, settings.penalties, chunks)
        if settings.bias is not None:
            bias = settings.bias
            logits.index_put_((bias.rows, bias.token_ids), bias.values, accumulate=True)
        broken = self._restrict(logits, settings, chunks)
        token_ids, highest = _most_probable(logits)
        if settings.draws is not None:
            token_ids = _draw(logits, settings.draws, chunks, token_ids=token_ids, highest=highest)
        chosen, peak = download.add(token_ids), download.add(highest)
        if asked is None or settings.logprobs is None:
            return Sampling(token_ids, broken, chosen, peak)
        rows = settings.logprobs
        coming = begin_logprobs(asked, token_ids[rows.rows], rows.num_top, download)
        return Sampling(token_ids, broken, chosen, peak, rows.indices, coming)

    def _restrict(self, logits: torch.Tensor, settings: _Settings, chunks: Sequence[PlannedChunk]) -> dict[int, str]:
        """Take away what is banned and what no grammar admits; what is wrong with grammars, by row."""
        if len(self._grammars):
            self._grammars.drop_unused()
        rows = settings.grammar_rows
        if not rows:
            if settings.bans is not None:
                _ban(logits, settings.bans, chunks)
            return {}
        masks, broken = self._grammars.fill(rows, chunks, vocab_size=logits.shape[-1])
        if settings.bans is not None:
            spared = settings.bans.emptying(rows, masks)
            _ban(logits, settings.bans, chunks, spared=spared)
        forbid(logits, rows, masks)
        return broken

    def _settings_of(self, chunks: Sequence[PlannedChunk], *, vocab_size: int, device: torch.device) -> _Settings:
        params = [chunk.params for chunk in chunks]
        # Equal where each is the very same object, which is all that a batch that goes on is asked.
        if self._settings is None or self._settings.params != params:
            self._settings = self._lay_out(params, vocab_size=vocab_size, device=device)
        return self._settings

    def _lay_out(self, params: list[SamplingParams], *, vocab_size: int, device: torch.device) -> _Settings:
        lists = {
            index: self._lists_of(row, vocab_size=vocab_size)
            for index, row in enumerate(params)
            if row.logit_bias or row.min_tokens > 0
        }
        return _Settings(
            params=params,
            penalties=Penalties.of(params, device=device),
            bias=_bias_of(lists, device=device),
            bans=_bans_of(lists),
            grammar_rows=[index for index, row in enumerate(params) if row.grammar is not None],
            draws=Draws.of(params, vocab_size=vocab_size, device=device),
            logprobs=_logprob_rows_of(params, device=device),
        )

    def _lists_of(self, params: SamplingParams, *, vocab_size: int) -> _Lists:
        """Read once, as long as the row is not away for long. Held with its lists, no other has its identity."""
        lists = self._lists.get(id(params))
        if lists is None:
            lists = self._read_lists(params, vocab_size=vocab_size)
            self._lists.keep(id(params), lists)
        return lists

    def _read_lists(self, params: SamplingParams, *, vocab_size: int) -> _Lists:
        """`ignore_eos` makes EOS a token like any other."""
        biases = [(token_id, bias) for token_id, bias in params.logit_bias if token_id < vocab_size]
        ends = set(params.stop_token_ids) if params.min_tokens > 0 else set()
        if params.min_tokens > 0 and not params.ignore_eos:
            ends |= self._eos_token_ids
        return _Lists(
            params,
            np.asarray([token_id for token_id, _ in biases], dtype=np.int64),
            np.asarray([bias for _, bias in biases], dtype=np.float32),
            np.asarray([token_id for token_id in ends if token_id < vocab_size], dtype=np.int64),
        )


def _bias_of(lists: Mapping[int, _Lists], *, device: torch.device) -> _Bias | None:
    rows, token_ids = _by_row({index: row.biased_ids for index, row in lists.items()})
    if not len(rows):
        return None
    values = np.concatenate([row.biases for row in lists.values()])
    return _Bias(*upload(rows, token_ids, values, device=device))


def _logprob_rows_of(params: Sequence[SamplingParams], *, device: torch.device) -> _LogprobRows | None:
    asking = {index: row.num_logprobs for index, row in enumerate(params) if row.num_logprobs is not None}
    if not asking:
        return None
    (rows,) = upload(np.fromiter(asking, dtype=np.int64), device=device)
    return _LogprobRows(list(asking), rows, list(asking.values()))


def _bans_of(lists: Mapping[int, _Lists]) -> _Bans | None:
    rows, token_ids = _by_row({index: row.banned_ids for index, row in lists.items()})
    if not len(rows):
        return None
    until = np.repeat(
        [row.params.min_tokens for row in lists.values()], [len(row.banned_ids) for row in lists.values()]
    )
    return _Bans(rows, token_ids, until)


def _by_row(token_ids: Mapping[int, npt.NDArray[np.int64]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All rows' token ids one after another, and beside them the rows that they belong to."""
    if not token_ids:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rows = np.repeat(np.fromiter(token_ids, dtype=np.int64), [len(ids) for ids in token_ids.values()])
    return rows, np.concatenate(list(token_ids.values()))


def _ban(logits: torch.Tensor, bans: _Bans, chunks: Sequence[PlannedChunk], *, spared: Sequence[int] = ()) -> None:
    """Give no probability to what would end a sequence before its `min_tokens`, but in the `spared` rows."""
    indices = np.fromiter([chunk.sample_index for chunk in chunks], dtype=np.int64)
    active = indices[bans.rows] < bans.until
    if spared:
        active &= ~np.isin(bans.rows, spared)
    if active.any():
        rows, token_ids = upload(bans.rows[active], bans.token_ids[active], device=logits.device)
        logits[rows, token_ids] = -torch.inf


def _most_probable(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row's largest logit, the lowest id of equals, and that logit; in a row with NaN, a NaN.

    On a CPU by NumPy, whose search is vectorised: it takes a tenth of the time.
    """
    found = torch.from_numpy(logits.numpy().argmax(axis=-1)) if is_on_cpu(logits) else logits.argmax(dim=-1)
    return found, logits.gather(-1, found[:, None]).squeeze(-1)


def _draw(
    logits: torch.Tensor,
    draws: Draws,
    chunks: Sequence[PlannedChunk],
    *,
    token_ids: torch.Tensor,
    highest: torch.Tensor,
) -> torch.Tensor:
    """`token_ids` with those of the rows that draw; `logits` are used up."""
    drawing = [chunks[index] for index in draws.indices]
    drawn = draws.draw(
        logits,
        highest,
        choices=[chunk.key.choice for chunk in drawing],
        indices=[chunk.sample_index for chunk in drawing],
    )
    return drawn if draws.is_all else token_ids.index_copy_(0, draws.rows, drawn)


def _errors(highest: npt.NDArray[np.float32]) -> dict[int, str]:
    is_finite = np.isfinite(highest)
    if is_finite.all():
        return {}
    return {
        index: "no token is left to choose" if highest[index] == -np.inf else NOT_FINITE
        for index in np.flatnonzero(~is_finite).tolist()
    }
