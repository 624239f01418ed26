"""Whether tenants were treated as the pool's order promises. Pure functions."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from serving.lab.experiments.overload_facts import Facts, judged_by, verdict
from serving.lab.experiments.overload_results import Verdict
from serving.lab.experiments.overload_stages import due_within


def judge_fairness(facts: Facts) -> Verdict:
    """Jain et al. 1984, "A Quantitative Measure of Fairness and Discrimination", over each tenant's service as a share
    of what the policy promises it."""
    order, bound = facts.tunables["order"], facts.criteria.min_fairness
    asked, served = _tokens_by_tenant(facts)
    title, words = "Tenants are treated alike", f"Jain's index of at least {bound:g}"
    if order == "priority":
        return verdict("fairness", title, words, "not judged", "not judged", "priority serves the urgent first")
    total = sum(served.values())
    promised = (
        fair_shares(asked, total)
        if order == "fair"
        else {name: total * each / sum(asked.values()) for name, each in asked.items()}
    )
    shares = [served[name] / promised[name] for name in asked if promised[name] > 0]
    index = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares)) if any(shares) else None
    promise = (
        "an equal part, or all that it asks" if order == "fair" else "a part of what is served, as of what is asked"
    )
    return verdict(
        "fairness",
        title,
        words,
        "nothing was served" if index is None else f"{index:.3f}",
        "not judged" if index is None else judged_by(index >= bound),
        f"order {order} promises each {promise}; served of asked tokens: "
        + ", ".join(f"{name or 'the Lab'} {served[name] / asked[name]:.0%}" for name in sorted(asked)),
    )


def _tokens_by_tenant(facts: Facts) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens asked for and served in the stage with the highest load; an answer that never came is taken to be as long
    as those of its class were on an average."""
    due = due_within(facts.outcomes, facts.top.begin_seconds, facts.top.end_seconds)
    lengths: dict[str, list[int]] = defaultdict(list)
    for each in facts.outcomes:
        if each.ending == "finished":
            lengths[each.request_class].append(each.num_output_tokens)
    asked: dict[str, float] = defaultdict(float)
    served: dict[str, float] = defaultdict(float)
    for each in due:
        usual = statistics.fmean(lengths[each.request_class] or [0])
        is_served = each.ending in ("finished", "cancelled")
        asked[each.tenant] += each.num_prompt_tokens + (each.num_output_tokens if is_served else usual)
        served[each.tenant] += (each.num_prompt_tokens + each.num_output_tokens) if is_served else 0
    return dict(asked), {name: served[name] for name in asked}


def fair_shares(asked: Mapping[str, float], total: float) -> dict[str, float]:
    """How max-min fairness divides `total` among those who ask: nobody gets more than is asked, and what one leaves
    goes to the others in equal parts (Bertsekas & Gallager 1992, "Data Networks", section 6.5.2)."""
    shares: dict[str, float] = {}
    left = total
    for number, (name, wanted) in enumerate(sorted(asked.items(), key=lambda each: each[1])):
        shares[name] = min(wanted, left / (len(asked) - number))
        left -= shares[name]
    return shares
