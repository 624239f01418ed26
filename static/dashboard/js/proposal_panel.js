/**
 * The foot of the levers: what is proposed, why, what stands against it, and what became of it.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./proposal.js").Proposal} Proposal
 */
import { createConflict } from "./conflict.js";
import { byId, find, setData, setText, show } from "./dom.js";
import { focusFirst, isFocusLost, keepInSight } from "./focus.js";
import { createProgress } from "./progress.js";
import { changesOf, isUnanswered } from "./proposal.js";
import { diffItem } from "./versions.js";

/**
 * @param {HTMLElement} root
 * @param {object} actions
 * @param {(action: Action) => void} actions.dispatch
 * @param {() => void} actions.apply sends the proposal where it may be sent
 * @param {() => State} actions.getState
 * @returns {{render: (state: State) => void}}
 */
export function createProposalPanel(root, { dispatch, apply, getState }) {
  const panel = find(root, "#proposal");
  const heading = find(root, "#levers-heading");
  const reason = /** @type {HTMLInputElement} */ (byId("reason"));
  const conflict = createConflict(byId("conflict"), {
    onApply() {
      dispatch({ type: "rebase" });
      apply();
    },
    onDiscard: () => dispatch({ type: "discard" }),
  });
  const progress = createProgress();
  const diff = byId("proposal-diff");
  const button = byId("apply");
  let shownChanges = "";

  keepInSight(panel, /** @type {HTMLElement[]} */ ([...root.querySelectorAll(".lever")]));
  root.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !(event.target instanceof HTMLInputElement)) return;
    event.preventDefault();
    goOn(event.target);
  });
  byId("discard").addEventListener("click", () => dispatch({ type: "discard" }));
  reason.addEventListener("input", () => dispatch({ type: "edit_reason", text: reason.value }));

  /** Enter leads from a lever to the reason, and from there to the engines. @param {HTMLInputElement} input */
  function goOn(input) {
    // What was typed last may not be drawn yet.
    render(getState());
    if (input === reason) send();
    else focusFirst([wrongLever() ?? reason]);
  }

  function send() {
    const state = getState();
    const wrong = wrongLever();
    if (wrong !== null) wrong.focus();
    else if (state.proposal.conflict !== null) conflict.focus();
    else if (canApply(state)) apply();
  }

  /** @returns {HTMLElement | null} the first that has to be corrected */
  function wrongLever() {
    const { errors, refusal } = getState().proposal;
    const [name = refusal?.param] = Object.keys(errors);
    return name ? root.querySelector(`[data-lever="${CSS.escape(name)}"] input`) : null;
  }

  /** @param {State} state */
  function render(state) {
    const { proposal, hello } = state;
    const specs = hello?.tunables ?? [];
    const changes = changesOf(proposal, specs);
    const isOpen = changes.length > 0 || Object.keys(proposal.errors).length > 0;
    const hadFocus = panel.contains(document.activeElement);
    show(byId("proposal-edit"), isOpen);
    const key = JSON.stringify(changes);
    if (key !== shownChanges) diff.replaceChildren(...changes.map((change) => diffItem(change, specs)));
    shownChanges = key;
    if (reason.value !== proposal.reason) reason.value = proposal.reason;
    setText(button, labelOf(changes.length));
    // Not `disabled`, which would drop the focus.
    button.ariaDisabled = String(!canApply(state));
    conflict.render(state, { isUsable: canApply(state) });
    // In a conflict there are two other ways to go on.
    show(byId("proposal-actions"), proposal.conflict === null);
    const problem = problemOf(state);
    show(byId("proposal-error"), problem !== "");
    setText(byId("proposal-error"), problem);
    const hasNews = progress.render(state) || problem !== "";
    setData(panel, "state", isOpen || isUnanswered(proposal) ? "open" : hasNews ? "idle" : "empty");
    if (hadFocus && isFocusLost()) focusFirst([panel, heading]);
  }

  return { render };
}

/** @param {State} state */
function canApply({ proposal, connection }) {
  return !isUnanswered(proposal) && connection.state === "live";
}

/** @param {number} numChanges */
function labelOf(numChanges) {
  if (numChanges === 0) return "Apply";
  return numChanges === 1 ? "Apply 1 change" : `Apply ${numChanges} changes`;
}

/** @param {State} state */
function problemOf({ proposal, connection }) {
  if (proposal.notice) return proposal.notice;
  // A conflict has a box of its own, a wrong value stands at its lever.
  if (proposal.refusal && proposal.conflict === null) return proposal.refusal.message;
  const wrong = Object.keys(proposal.errors);
  if (wrong.length > 0) return `To be corrected first: ${wrong.join(", ")}.`;
  if (Object.keys(proposal.changes).length === 0) return "";
  switch (connection.state) {
    case "live":
      return "";
    case "signed_out":
      return "Signed out: nothing can be applied. Sign in above; your change will be here again.";
    case "refused":
      return "This page may not connect any more: nothing can be applied.";
    default:
      return "Not connected: it can be applied when the connection is back.";
  }
}
