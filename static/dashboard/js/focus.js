/** Where the focus is: in sight, and never nowhere. */

/**
 * The focused one of `parts` stays in sight when `panel` grows over it, or it grows itself; so does a panel that has
 * the focus and shrinks. Over a panel that sticks to the window's edge the page scrolls as if it ended there.
 *
 * @param {HTMLElement} panel
 * @param {HTMLElement[]} parts
 */
export function keepInSight(panel, parts) {
  const observer = new ResizeObserver(() => {
    const isOver = getComputedStyle(panel).position === "sticky";
    document.documentElement.style.scrollPaddingBottom = isOver ? `${panel.offsetHeight}px` : "";
    const focused = document.activeElement;
    const part = (isOver ? parts : [...parts, panel]).find((each) => each.contains(focused));
    part?.scrollIntoView({ block: "nearest" });
    // Of a part that is too high for what is left, at least what is typed into.
    if (part) focused?.scrollIntoView({ block: "nearest" });
  });
  for (const element of [panel, ...parts]) observer.observe(element);
}

/**
 * Whether what had the focus cannot have it any more.
 *
 * @returns {boolean}
 */
export function isFocusLost() {
  const focused = document.activeElement;
  return focused === null || focused === document.body || focused.getClientRects().length === 0;
}

/**
 * Focuses the first of `places` that is shown.
 *
 * @param {HTMLElement[]} places
 */
export function focusFirst(places) {
  places.find((place) => place.getClientRects().length > 0)?.focus();
}
