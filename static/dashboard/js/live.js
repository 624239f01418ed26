/**
 * The Live page: one store, one connection, and the views, drawn at most once an animation frame and only in sight.
 *
 * @typedef {import("./state.js").State} State
 */
import { createBoard } from "./board.js";
import { byId } from "./dom.js";
import { createEngines } from "./engines.js";
import { createExports } from "./exports.js";
import { createGroups } from "./groups.js";
import { keepProposal } from "./kept_proposal.js";
import { createLevers } from "./levers.js";
import { openLink } from "./link.js";
import { createMarksList } from "./marks_list.js";
import { createPastReader } from "./past_reader.js";
import { createPrompt } from "./prompt.js";
import { createProposalPanel } from "./proposal_panel.js";
import { reduce } from "./reducers.js";
import { initialState } from "./state.js";
import { createStatus } from "./status.js";
import { createStore } from "./store.js";
import { createTiles } from "./tiles.js";
import { createTrialNotice } from "./trial_notice.js";
import { createVersions } from "./versions.js";
import { createViewControls, readChoices } from "./view_controls.js";

/** @param {HTMLElement} root */
function start(root) {
  const { pool = "", socketPath = "", promptUrl = "", historyUrl = "", maySteer } = root.dataset;
  const store = createStore(reduce, initialState(readChoices()));
  const link = openLink({ url: new URL(socketPath, location.href.replace(/^http/, "ws")).href, store });
  const { dispatch } = store;
  let isRequested = false;

  const board = createBoard(byId("charts"), { requestRender, dispatch, getState: store.getState });
  const controls = createViewControls(dispatch);
  const views = [
    createStatus(root, { onRetry: link.retryNow }),
    controls,
    createTiles(byId("tiles")),
    createGroups(byId("charts"), byId("choose-charts"), dispatch),
    board,
    createMarksList(byId("marks"), board),
    createPastReader({ url: historyUrl, dispatch }),
    createLevers(byId("levers"), dispatch),
    createProposalPanel(byId("levers"), { dispatch, apply: link.apply, getState: store.getState }),
    createVersions(byId("versions"), {
      rollBack: link.rollBack,
      maySteer: maySteer === "true",
      problem: byId("versions-error"),
    }),
    createEngines(byId("engines")),
    createTrialNotice(byId("trial-notice"), byId("trial-words")),
  ];
  createExports({ pool, snapshot: board.snapshot });
  // Whoever may not ask the model has no box for it.
  if (promptUrl !== "") createPrompt({ url: promptUrl });

  function requestRender() {
    if (isRequested) return;
    isRequested = true;
    requestAnimationFrame(() => {
      isRequested = false;
      const state = store.getState();
      for (const view of views) view.render(state);
    });
  }

  store.subscribe(controls.remember);
  store.subscribe(requestRender);
  keepProposal({ pool, store });
  addEventListener("online", link.retryNow);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") link.retryNow();
  });
  requestRender();
}

start(byId("live"));
