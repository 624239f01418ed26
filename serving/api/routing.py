"""Which pool runs a request: by its model, by what its tenant may use, by its own wish, and by its length. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serving.contracts.errors import InvalidValue, ModelNotFound

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView
    from serving.gateway.text.tokenizer import TextModel


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """The pool that a request belongs to, and the one that takes it over where its prompt is long. Both serve one
    model."""

    home: PoolView
    bulk: PoolView | None = None

    @property
    def text_model(self) -> TextModel:
        """The text side of the model, wherever it runs."""
        return self.home.text_model

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together that either pool takes."""
        return max(pool.max_model_len for pool in (self.home, self.bulk) if pool is not None)

    def pool_for(self, num_prompt_tokens: int, *, num_output_tokens: int = 1) -> PoolView:
        """Where a request goes whose longest prompt has so many tokens, and whose answers are asked to have as many: a
        pool that cannot hold both gives way to one that can."""
        if self.bulk is None:
            return self.home
        is_long = num_prompt_tokens > self.home.tunables.long_prompt_tokens
        wanted, other = (self.bulk, self.home) if is_long else (self.home, self.bulk)
        return other if wanted.max_model_len < num_prompt_tokens + num_output_tokens <= other.max_model_len else wanted

    def other_than(self, pool: PoolView) -> PoolView | None:
        """The one of the two that `pool` is not."""
        return self.bulk if pool.name == self.home.name else self.home


def usable_models(pools: Sequence[PoolView], allowed: Sequence[str] | None) -> list[str]:
    """The names of the models of the pools that a tenant may use (None: all), in the order of the pools."""
    return list(dict.fromkeys(view.model for view in pools if allowed is None or view.name in allowed))


def find_route(
    pools: Sequence[PoolView], *, model: str, allowed: Sequence[str] | None = None, named: str | None = None
) -> Route:
    """The way of a request for `model`. `allowed` are the names of the pools that its tenant may use, the preferred
    first, None where it may use all; `named` is the one that the request asks for.

    Of the pools that may take it, the first with an engine does, or else the first. A pool that is asked for by name
    takes all prompts; where none is, the pool named by `long_prompt_pool` takes the long ones, if it may and has an
    engine. Raises `ModelNotFound` where no pool may serve the model, and `InvalidValue` for a name that may not.
    """
    serving: dict[str, PoolView] = {view.name: view for view in pools if view.model == model}
    usable = list(serving.values()) if allowed is None else [serving[name] for name in allowed if name in serving]
    if not usable:
        raise ModelNotFound(f"the model {model!r} does not exist: /v1/models lists those that do", param="model")
    if named is not None:
        return Route(_chosen(usable, named, model=model))
    home = next((view for view in usable if view.has_engines), usable[0])
    return Route(home, _bulk_of(home, usable))


def _chosen(usable: Sequence[PoolView], name: str, *, model: str) -> PoolView:
    for view in usable:
        if view.name == name:
            return view
    names = ", ".join(view.name for view in usable)
    raise InvalidValue("pool", name, f"one that serves {model!r} and that this key may use: {names}")


def _bulk_of(home: PoolView, usable: Sequence[PoolView]) -> PoolView | None:
    wanted = home.tunables.long_prompt_pool
    found = (view for view in usable if view.name == wanted and view is not home and view.has_engines)
    return next(found, None) if wanted else None
