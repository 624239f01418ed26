/**
 * The Tuning page: the levers of the Live page with presets, conflicts and terms, and the history that the server draws.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 */
import { byId, find } from "./dom.js";
import { keepProposal } from "./kept_proposal.js";
import { openWhatIf } from "./lab/predictions/what_if.js";
import { askAt, createLeverConflicts, showIn } from "./lever_conflicts.js";
import { createLevers } from "./levers.js";
import { openLink } from "./link.js";
import { createProposalPanel } from "./proposal_panel.js";
import { reduce } from "./reducers.js";
import { createStanding } from "./standing.js";
import { initialState } from "./state.js";
import { createStatus } from "./status.js";
import { createStore } from "./store.js";
import { createTerms } from "./terms.js";

/** @param {HTMLElement} root */
function start(root) {
  const { pool = "", socketPath = "", conflictsUrl = "", standingUrl = "" } = root.dataset;
  const store = createStore(reduce, initialState());
  const link = openLink({ url: new URL(socketPath, location.href.replace(/^http/, "ws")).href, store });
  const terms = createTerms(document.getElementById("terms"));
  const { dispatch, getState } = store;
  let isRequested = false;
  let stored = 0;

  function apply() {
    const read = terms.read();
    if (read !== null) link.apply(read);
  }

  const views = [
    createStatus(root, { onRetry: link.retryNow }),
    createLevers(byId("levers"), dispatch),
    createProposalPanel(byId("levers"), { dispatch, apply, getState }),
    createLeverConflicts({ ask: askAt(conflictsUrl), show: showIn(document.getElementById("conflicts")) }),
    createStanding(standingUrl),
    openWhatIf(document.getElementById("what-if"), { getState }),
    { render: forgetTerms },
  ];

  /** They were stored with their change, and are not meant for the next one. @param {State} state */
  function forgetTerms({ proposal }) {
    const number = proposal.stored?.number ?? 0;
    if (number > stored) terms.reset();
    stored = Math.max(stored, number);
  }

  function requestRender() {
    if (isRequested) return;
    isRequested = true;
    requestAnimationFrame(() => {
      isRequested = false;
      draw();
    });
  }

  function draw() {
    const state = getState();
    for (const view of views) view.render(state);
  }

  store.subscribe(requestRender);
  keepProposal({ pool, store });
  for (const card of root.querySelectorAll(".preset"))
    offerPreset(/** @type {HTMLElement} */ (card), { dispatch, getState, draw });
  addEventListener("online", link.retryNow);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") link.retryNow();
  });
  requestRender();
}

/**
 * A preset fills the levers, where it can be looked at and changed before it is applied; without a connection its link
 * leads to a page of its own. All of it is drawn at once, so that nothing moves under whoever types right after.
 *
 * @param {HTMLElement} card
 * @param {object} parts
 * @param {(action: Action) => void} parts.dispatch
 * @param {() => State} parts.getState
 * @param {() => void} parts.draw
 */
function offerPreset(card, { dispatch, getState, draw }) {
  const { preset = "", texts = "{}" } = card.dataset;
  const values = /** @type {Record<string, string>} */ (JSON.parse(texts));
  card.querySelector("a")?.addEventListener("click", (event) => {
    const { hello, connection, proposal } = getState();
    if (!hello?.may_steer || connection.state !== "live") return;
    event.preventDefault();
    for (const [name, text] of Object.entries(values)) dispatch({ type: "edit", name, text });
    if (proposal.reason === "") dispatch({ type: "edit_reason", text: `preset ${preset}` });
    draw();
    find(byId("levers"), "#reason").focus();
  });
}

start(byId("tuning"));
