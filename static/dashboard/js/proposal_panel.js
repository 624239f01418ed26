/**
 * The foot of the levers: what is proposed, why, what stands against it, and what became of it.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./proposal.js").Proposal} Proposal
 */
import { byId, create, find, setData, setText, show } from "./dom.js";
import { age } from "./format.js";
import { changesOf } from "./proposal.js";
import { enginesApplied } from "./selectors.js";
import { diffItem, diffItems } from "./versions.js";

/**
 * @param {HTMLElement} root
 * @param {object} actions
 * @param {(action: Action) => void} actions.dispatch
 * @param {() => void} actions.apply sends the proposal where it may be sent
 * @returns {{render: (state: State) => void}}
 */
export function createProposalPanel(root, { dispatch, apply }) {
  const panel = find(root, "#proposal");
  const reason = /** @type {HTMLInputElement} */ (byId("reason"));
  const conflict = createConflict(byId("conflict"), { dispatch, apply });
  const progress = createProgress();
  const diff = byId("proposal-diff");
  const button = /** @type {HTMLButtonElement} */ (byId("apply"));
  let shownChanges = "";

  root.addEventListener("submit", (event) => {
    event.preventDefault();
    const wrong = /** @type {HTMLElement | null} */ (root.querySelector('[aria-invalid="true"]'));
    if (wrong) wrong.focus();
    else apply();
  });
  byId("discard").addEventListener("click", () => dispatch({ type: "discard" }));
  reason.addEventListener("input", () => dispatch({ type: "edit_reason", text: reason.value }));

  return {
    render(state) {
      const { proposal } = state;
      const specs = state.hello?.tunables ?? [];
      const changes = changesOf(proposal, specs);
      const isOpen = changes.length > 0 || Object.keys(proposal.errors).length > 0;
      const hadFocus = panel.contains(document.activeElement);
      const isSending = proposal.phase === "sending" || proposal.phase === "unknown";
      setData(panel, "state", isOpen || isSending ? "open" : proposal.phase === "idle" ? "empty" : "idle");
      show(byId("proposal-edit"), isOpen);
      const key = JSON.stringify(changes);
      if (key !== shownChanges) diff.replaceChildren(...changes.map((change) => diffItem(change, specs)));
      shownChanges = key;
      if (reason.value !== proposal.reason) reason.value = proposal.reason;
      setText(
        button,
        changes.length === 0 ? "Apply" : changes.length === 1 ? "Apply 1 change" : `Apply ${changes.length} changes`,
      );
      button.disabled = isSending || state.connection.state !== "live";
      // In a conflict there are two other ways to go on.
      show(byId("proposal-actions"), proposal.conflict === null);
      const problem = problemOf(state);
      show(byId("proposal-error"), problem !== "");
      setText(byId("proposal-error"), problem);
      conflict.render(state);
      progress.render(state);
      // What had the focus may be gone: its place in the order stays.
      if (hadFocus && document.activeElement?.closest("[hidden]") !== null) panel.focus();
    },
  };
}

/** @param {State} state */
function problemOf({ proposal, connection }) {
  if (proposal.notice) return proposal.notice;
  // A conflict has a box of its own, a wrong value stands at its lever.
  if (proposal.refusal && proposal.conflict === null) return proposal.refusal.message;
  const wrong = Object.keys(proposal.errors);
  if (wrong.length > 0) return `To be corrected first: ${wrong.join(", ")}.`;
  const hasChanges = Object.keys(proposal.changes).length > 0;
  return hasChanges && connection.state !== "live"
    ? "Not connected: it can be applied when the connection is back."
    : "";
}

/** @param {HTMLElement} box @param {{dispatch: (action: Action) => void, apply: () => void}} actions */
function createConflict(box, { dispatch, apply }) {
  let shownNumber = 0;
  return {
    /** @param {State} state */
    render({ proposal, hello, now }) {
      const newer = proposal.conflict?.newer ?? [];
      show(box, newer.length > 0);
      if (newer.length === 0 || newer[0].number === shownNumber) {
        if (newer.length === 0) shownNumber = 0;
        return;
      }
      shownNumber = newer[0].number;
      const onTop = create("button", {
        type: "button",
        className: "primary",
        text: `Apply on top of version ${shownNumber}`,
      });
      const discard = create("button", { type: "button", text: "Discard mine" });
      onTop.addEventListener("click", () => {
        dispatch({ type: "rebase" });
        apply();
      });
      discard.addEventListener("click", () => dispatch({ type: "discard" }));
      const heading = create("strong", {
        text: newer.length === 1 ? "Changed meanwhile" : `Changed ${newer.length} times meanwhile`,
      });
      const accounts = newer
        .slice(0, 3)
        .flatMap((version) => [
          create("p", { text: accountOf(version, now) }),
          create("ul", { className: "diff" }, diffItems(version, hello?.tunables ?? [])),
        ]);
      box.replaceChildren(heading, ...accounts, create("div", { className: "proposal-actions" }, [onTop, discard]));
    },
  };
}

/** @param {VersionInfo} version @param {number} now */
function accountOf({ number, author, reason, created_at }, now) {
  const ago = age((now - Date.parse(created_at)) / 1000);
  return `Version ${number} by ${author || "the system"}, ${ago}${reason ? `: ${reason}` : ""}`;
}

/** *proposed → stored → applied on k of n*, told to a screen reader as it changes. */
function createProgress() {
  const list = byId("progress");
  const [proposed, stored, applied] = ["proposed", "stored", "applied"].map((step) =>
    find(list, `[data-step="${step}"]`),
  );
  const spoken = byId("proposal-status");
  return {
    /** @param {State} state */
    render(state) {
      const { phase, stored: version } = state.proposal;
      const isSent = phase === "sending" || phase === "unknown";
      show(list, isSent || phase === "stored" || phase === "applied");
      setData(proposed, "done", "true");
      setData(stored, "done", isSent ? "now" : "true");
      setText(stored, isSent || version === null ? "storing" : `stored as version ${version.number}`);
      const { applied: count, total } = enginesApplied(state, version?.number ?? null);
      show(applied, !isSent);
      setData(applied, "done", phase === "applied" ? "true" : "now");
      setText(applied, `applied on ${count} of ${total} ${total === 1 ? "engine" : "engines"}`);
      setText(spoken, list.hidden ? "" : isSent ? "Storing" : `${stored.textContent}, ${applied.textContent}`);
    },
  };
}
