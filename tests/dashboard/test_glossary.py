"""The console's words: each explained once, in one sentence, and shown where a template names it."""

from __future__ import annotations

import html
import re

import pytest
from django.template import Context, Template

from dashboard.glossary import TERMS


def rendered(text: str) -> str:
    return html.unescape(Template("{% load terms %}" + text).render(Context()))


@pytest.mark.parametrize("key", list(TERMS))
def test_every_term_is_explained_in_one_sentence(key: str) -> None:
    term = TERMS[key]
    assert term.name.strip()
    assert re.fullmatch(r"[A-Zp][^.]*(\.\d[^.]*)*\.", term.meaning), term.meaning
    assert len(term.meaning) <= 110


def test_a_term_shows_its_word_and_tells_its_meaning_without_a_script() -> None:
    shown = rendered('{% term "ttft" %}')
    target = re.search(r'popovertarget="([^"]+)" aria-label="What is TTFT\?"', shown)
    assert target is not None
    assert f'id="{target[1]}" popover' in shown
    assert TERMS["ttft"].meaning in shown
    assert '<span class="term">TTFT</span>' in shown


def test_an_explanation_leaves_the_word_to_the_page() -> None:
    shown = rendered('{% explain "ttft" %}')
    assert 'class="term"' not in shown
    assert TERMS["ttft"].meaning in shown


def test_a_page_may_call_it_otherwise() -> None:
    assert '<span class="term">First token</span>' in rendered('{% term "ttft" "First token" %}')


def test_a_term_that_is_shown_twice_has_two_notes() -> None:
    ids = re.findall(r' id="([^"]+)"', rendered('{% term "kv" %}{% with x=1 %}{% explain "kv" %}{% endwith %}'))
    assert len(ids) == len(set(ids)) == 2


def test_a_term_that_nobody_explained_is_an_error() -> None:
    with pytest.raises(KeyError):
        rendered('{% term "nonsense" %}')
