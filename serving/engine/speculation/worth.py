"""Whether guesses pay: what a row costs, and how many guesses are kept, both as measured lately."""

from __future__ import annotations

import math

from serving.engine.speculation.lookup import LONGEST_MATCH

_FORGETTING = 0.99
"""What a step's measurement weighs after one more: half of it after 69."""
_DOUBT = 16.0
"""Without at least about so much of a spread (squared rows, summed) a row is believed to cost little."""
_OUTLIER = 4.0
_MARGIN = 1.2
_LEAST_PRICE = 0.05
"""Guesses that are kept more seldom than this are not worth the place that they take in a step."""

_MOST_IN_ROW = 1000

_PRIOR_RATIO, _PRIOR_TRIALS = 0.5, 4.0
_SEQUENCE_TRIALS = 3.0
"""So many of a sequence's own guesses weigh as much as what all others' say."""
_POOL_FORGETTING, _SEQUENCE_FORGETTING = 0.995, 0.9
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512


class RowCost:
    """Owns what the latest decode steps took, by their rows; used by the engine's thread only.

    A step is taken to last `base + slope * rows`: weights are read once a step, the rest is done once a row. Both are
    found by least squares over the latest steps, the older ones weighing less and less (Haykin, "Adaptive Filter
    Theory", chapter 9: exponentially weighted recursive least squares). While all steps have about as many rows, the
    slope cannot be seen and falls slowly to 0: what was found too dear is so tried again after a while.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._spread = 0.0
        self._joint = 0.0

    def note(self, *, num_rows: int, seconds: float) -> None:
        """A step with `num_rows` rows, none of prefill, took so long. What took several times as long as it could was
        held up by something else, and says nothing but that what was measured before may no longer hold."""
        self.num_steps += 1
        if self._weight >= 1.0 and seconds > _OUTLIER * self._seconds * max(1.0, num_rows / self._rows):
            self._weight *= _FORGETTING
            self._spread *= _FORGETTING
            self._joint *= _FORGETTING
            return
        weight = self._weight * _FORGETTING + 1.0
        rows_off, seconds_off = num_rows - self._rows, seconds - self._seconds
        self._rows += rows_off / weight
        self._seconds += seconds_off / weight
        self._spread = self._spread * _FORGETTING + rows_off * (num_rows - self._rows)
        self._joint = self._joint * _FORGETTING + rows_off * (seconds - self._seconds)
        self._weight = weight

    @property
    def slope(self) -> float:
        """Seconds that a row more costs: never less than nothing, nor more than the mean row."""
        if self._rows <= 0.0:
            return 0.0
        return min(max(0.0, self._joint / (self._spread + _DOUBT)), self._seconds / self._rows)

    def seconds_of(self, num_rows: float) -> float:
        """What a step with so many rows is expected to take."""
        return self._seconds + self.slope * (num_rows - self._rows)

    def price_of_draft(self, num_sequences: int) -> float:
        """How probable it must be that a guess is kept for its row to pay, where so many sequences decode: 0 to 1.

        A step of `B` sequences makes `B` tokens in `T` seconds. A guess that is kept with probability `p` adds `p`
        tokens and `slope` seconds: more tokens a second just if `p > B * slope / T`.
        """
        seconds = self.seconds_of(num_sequences)
        return min(1.0, num_sequences * self.slope / seconds) if seconds > 0.0 else 0.0


class _Ratio:
    """Owns a count of guesses that were looked at and of those kept, the older ones weighing less."""

    __slots__ = ("kept", "trials")

    def __init__(self) -> None:
        self.kept = 0.0
        self.trials = 0.0

    def note(self, *, num_kept: int, num_trials: int, forgetting: float) -> None:
        factor = forgetting**num_trials
        self.kept = self.kept * factor + num_kept
        self.trials = self.trials * factor + num_trials

    def mean(self, *, prior: float, prior_trials: float) -> float:
        return (self.kept + prior * prior_trials) / (self.trials + prior_trials)


class Trust:
    """Owns how well one sequence was guessed, and until when it is left alone; used by the engine's thread only."""

    __slots__ = ("_pause", "quiet_until", "ratios")

    def __init__(self) -> None:
        self.quiet_until = 0
        """The context's length before which nothing is guessed."""
        self.ratios: dict[int, _Ratio] = {}
        """By how many tokens agreed where the guess was found."""
        self._pause = _FIRST_PAUSE

    def leave_alone(self, num_tokens: int) -> None:
        """Guess nothing for a while, and for twice as long the next time; `num_tokens` is the context's length."""
        self.quiet_until = num_tokens + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def note_kept(self) -> None:
        """A guess was kept: the next pause is a short one again."""
        self._pause = _FIRST_PAUSE


class Worth:
    """Owns what rows cost and what guesses are kept, over all sequences; used by the engine's thread only. Knows no
    clock.

    Guesses that agree with the context for longer are kept more often, so each length of agreement has a ratio of its
    own: of all sequences together, and, from there, of each one. The chance that the `j`-th of a row of guesses is kept
    is taken to be that ratio to the power of `j` (Leviathan et al. 2023, section 3.1: acceptances as independent
    trials).
    """

    def __init__(self) -> None:
        self.cost = RowCost()
        """Of steps that were planned when all tokens were known."""
        self.cost_ahead = RowCost()
        """Of steps that were planned while the one before was computed: the host's part is hidden in these."""
        self._ratios = [_Ratio() for _ in range(LONGEST_MATCH + 1)]

    def num_drafts(self, trust: Trust, *, num_agreeing: int, price: float, most: int, num_tokens: int) -> int:
        """How many guesses to compute for a sequence with a context of `num_tokens`: 0 … `most`, as many as pay.

        A sequence whose guesses do not pay is left alone for a while, longer each time, with one guess in between: it
        may have begun to repeat something.
        """
        demanded = max(_LEAST_PRICE, _MARGIN * price)
        if demanded >= 1.0 or most <= 0:
            return 0
        count = _most_that_pay(self.ratio_of(trust, num_agreeing), demanded)
        if count:
            return min(most, count)
        trust.leave_alone(num_tokens)
        return 1

    def expect(self, trust: Trust, *, num_agreeing: int, price: float, most: int) -> tuple[int, float]:
        """How many guesses would be computed for a sequence after a token that is not known yet, and how many of them
        be kept; nothing where they do not pay. Mutates nothing."""
        ratio = self.ratio_of(trust, num_agreeing)
        count = min(most, _most_that_pay(ratio, max(_LEAST_PRICE, _MARGIN * price)))
        # The token that is awaited must be the one that followed before, for what comes behind it to be guessed.
        return count, math.fsum(ratio ** (place + 1) for place in range(1, count + 1))

    def pays_to_wait(self, *, num_sequences: int, num_drafts: int, num_kept: float) -> bool:
        """Whether a step with so many guesses makes more tokens a second than one without that is planned ahead. What
        was never measured is tried: first the one ahead, then the other where a quarter more tokens may come of it."""
        ahead, waiting = self.cost_ahead.seconds_of(num_sequences), self.cost.seconds_of(num_sequences + num_drafts)
        if min(ahead, waiting) <= 0.0:
            return self.cost_ahead.num_steps > 0 and num_kept >= num_sequences / 4
        return (num_sequences + num_kept) * ahead > num_sequences * waiting

    def ratio_of(self, trust: Trust, num_agreeing: int) -> float:
        """How probable it is that a guess is kept, where those before it were."""
        pool = self._ratios[num_agreeing].mean(prior=_PRIOR_RATIO, prior_trials=_PRIOR_TRIALS)
        own = trust.ratios.get(num_agreeing)
        return pool if own is None else own.mean(prior=pool, prior_trials=_SEQUENCE_TRIALS)

    def note_kept(self, trust: Trust, *, num_agreeing: int, num_drafts: int, num_kept: int) -> None:
        """Of `num_drafts` guesses the first `num_kept` were kept; none behind the first that was not was looked at."""
        num_trials = min(num_kept + 1, num_drafts)
        own = trust.ratios.setdefault(num_agreeing, _Ratio())
        own.note(num_kept=num_kept, num_trials=num_trials, forgetting=_SEQUENCE_FORGETTING)
        pool = self._ratios[num_agreeing]
        pool.note(num_kept=num_kept, num_trials=num_trials, forgetting=_POOL_FORGETTING)
        if num_kept:
            trust.note_kept()


def _most_that_pay(ratio: float, demanded: float) -> int:
    """The largest number of guesses in a row of which the last is kept with at least the probability demanded."""
    if ratio < demanded:
        return 0
    return _MOST_IN_ROW if ratio >= 1.0 else min(_MOST_IN_ROW, int(math.log(demanded) / math.log(ratio) + 1e-9))
