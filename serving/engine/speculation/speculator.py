"""Guesses of what sequences say next, as far as they pay."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from serving.contracts.messages import SequenceKey
from serving.contracts.tunables import Tunables
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.sequence import Sequence
from serving.engine.speculation.lookup import PromptLookup
from serving.engine.speculation.worth import Trust, Worth

_MOST_READ = 2048
"""Tokens that all look-ups together read in a step: a millisecond, whatever prompts have come."""
_SPARE = 16
_MOST_ALIKE = 256
"""So many steps in a row are planned ahead, and so without guesses, or are not, before the other is tried once."""


class _Reading:
    """Owns what is known of one sequence: its context, how well it was guessed, and how far the last guess agreed."""

    __slots__ = ("lookup", "num_agreeing", "trust")

    def __init__(self, context: Seq[int]) -> None:
        self.lookup = PromptLookup(context)
        self.trust = Trust()
        self.num_agreeing = 0


class Speculator:
    """Owns the look-ups of those that decode, and the books of whether guesses pay; used by the engine's thread only.

    Nothing is read, kept or measured while the tunable `speculation` is off. A sequence is forgotten when it no longer
    runs.
    """

    def __init__(self, tunables: Tunables) -> None:
        self._worth = Worth()
        self._readings: dict[SequenceKey, _Reading] = {}
        self._price = 1.0
        self._num_to_read = 0
        self._waited = False
        self._num_alike = 0
        self._most_drafts = tunables.max_draft_tokens
        self.is_on = tunables.speculation == "on"

    @property
    def num_known(self) -> int:
        """Sequences of which something is kept."""
        return len(self._readings)

    def retune(self, tunables: Tunables) -> None:
        """Follow new tunables from the next step on; what was measured before it was off for a time is forgotten."""
        self._most_drafts = tunables.max_draft_tokens
        self.is_on = tunables.speculation == "on"
        if not self.is_on:
            self._readings.clear()
            self._worth = Worth()

    def begin_step(self, running: Seq[Sequence], *, num_decoding: int) -> None:
        """Plan a step in which `num_decoding` of those that run decode."""
        self._price = self._worth.cost.price_of_draft(num_decoding)
        self._num_to_read = _MOST_READ
        self.forget_all_but(running)

    def forget_all_but(self, running: Seq[Sequence]) -> None:
        """Keep nothing of those that do not run any more, once they are more than a few."""
        if len(self._readings) <= len(running) + _SPARE:
            return
        keys = {sequence.key for sequence in running}
        self._readings = {key: reading for key, reading in self._readings.items() if key in keys}

    def propose(self, sequence: Sequence, *, most: int) -> list[int]:
        """Guesses of the tokens after the context of a sequence whose last token the step computes: as many as pay, at
        most `most`, and never more than it may still generate after the one that is chosen anyway."""
        most = min(most, self._most_drafts, _num_left(sequence))
        found = None if most <= 0 else self._find(sequence)
        if found is None:
            return []
        reading, place, num_agreeing = found
        reading.num_agreeing = num_agreeing
        count = self._worth.num_drafts(
            reading.trust,
            num_agreeing=num_agreeing,
            price=self._price,
            most=most,
            num_tokens=len(sequence.token_ids),
        )
        return reading.lookup.copy(place, count) if count else []

    def note_kept(self, chunk: PlannedChunk, *, num_kept: int) -> None:
        """Of the drafts of `chunk`, which were proposed in the same step, the first `num_kept` were kept."""
        reading = self._readings.get(chunk.key)
        if reading is not None and reading.lookup.context is chunk.context:
            self._worth.note_kept(
                reading.trust, num_agreeing=reading.num_agreeing, num_drafts=len(chunk.draft_ids), num_kept=num_kept
            )

    def note_step(self, plan: StepPlan, seconds: float) -> None:
        """The step of `plan` took so long, or added so much to the one before if it was planned while that was
        computed. Steps with prefill say nothing of decodes."""
        if not self.is_on or plan.num_prefill_tokens:
            return
        is_ahead = any(chunk.awaits is not None for chunk in plan.chunks)
        cost = self._worth.cost_ahead if is_ahead else self._worth.cost
        cost.note(num_rows=plan.num_decode_tokens, seconds=seconds)

    def is_worth_waiting(self, awaited: Collection[Sequence]) -> bool:
        """Whether the next step is better not planned before the tokens in flight are known, those of the `awaited`,
        for the sake of what may be guessed then: a guess goes on from a token that is known. Where anything may be
        guessed, what is not done is done once after so many steps, to see whether it pays by now."""
        if not self.is_on:
            return False
        worth, price = self._worth, self._worth.cost.price_of_draft(len(awaited))
        self._num_to_read = _MOST_READ
        num_drafts, num_kept, may_guess = 0, 0.0, False
        for sequence in awaited:
            # One that may be chosen less, which is the token in flight.
            most = min(self._most_drafts, _num_left(sequence) - 1)
            found = None if most <= 0 else self._find(sequence)
            if found is None:
                continue
            may_guess = True
            reading, _, num_agreeing = found
            drafts, kept = worth.expect(reading.trust, num_agreeing=num_agreeing, price=price, most=most)
            num_drafts, num_kept = num_drafts + drafts, num_kept + kept
        waits = num_drafts > 0 and worth.pays_to_wait(
            num_sequences=len(awaited), num_drafts=num_drafts, num_kept=num_kept
        )
        if may_guess:
            self._num_alike = self._num_alike + 1 if waits == self._waited else 0
            self._waited = waits
        if self._num_alike >= _MOST_ALIKE:
            self._num_alike = 0
            return not waits
        return waits

    def _find(self, sequence: Sequence) -> tuple[_Reading, int, int] | None:
        """What is known of a sequence, and where the end of its context was seen before (see `PromptLookup.find`); None
        where nothing is to be guessed."""
        # Several tokens are chosen at once: not where a choice looks at those before it, as under a grammar.
        if sequence.is_bound_to_host:
            return None
        reading = self._reading_of(sequence)
        if len(sequence.token_ids) < reading.trust.quiet_until or not self._read_on(reading.lookup):
            return None
        found = reading.lookup.find()
        return None if found is None else (reading, *found)

    def _reading_of(self, sequence: Sequence) -> _Reading:
        reading = self._readings.get(sequence.key)
        if reading is None or reading.lookup.context is not sequence.token_ids:
            reading = self._readings[sequence.key] = _Reading(sequence.token_ids)
        return reading

    def _read_on(self, lookup: PromptLookup) -> bool:
        """Whether everything is read: a long context takes several steps to be."""
        num_unread = lookup.num_unread
        if num_unread > self._num_to_read:
            lookup.read_on(self._num_to_read)
            self._num_to_read = 0
            return False
        lookup.read_on(num_unread)
        self._num_to_read -= num_unread
        return True


def _num_left(sequence: Sequence) -> int:
    """Tokens that a sequence may generate after the next one."""
    return sequence.num_prompt_tokens + sequence.params.max_tokens - len(sequence.token_ids) - 1
