/**
 * The Steps page: the batch as it runs, drawn at most once an animation frame.
 *
 * @typedef {import("./steps_link.js").Known} Known
 * @typedef {import("./steps_view.js").View} View
 * @typedef {import("./steps_rows.js").Sequence} Sequence
 */
import { byId, show } from "./dom.js";
import { createSizeCharts } from "./steps_charts.js";
import { addressOf, createDetail } from "./steps_detail.js";
import { createHead } from "./steps_head.js";
import { openStepsLink } from "./steps_link.js";
import { createPicture } from "./steps_picture.js";
import { find, hashOf, placeIn } from "./steps_place.js";
import { following, initialView, selectedIn, selecting, stopped, zoomed } from "./steps_view.js";

const ADDRESS_REST_MS = 300;

/** @param {HTMLElement} root */
function start(root) {
  const { socketPath = "", requestsUrl = "", engine = "" } = root.dataset;
  /** @type {Known | null} */
  let known = null;
  let view = initialView();
  let isRequested = false;
  let wanted = placeIn(location.hash);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let addressing;
  /** @type {import("./steps_layout.js").Column | null} */
  let told = null;
  const getRing = () => known?.ring ?? null;

  /** @param {View} next */
  function setView(next) {
    view = next;
    requestRender();
  }

  /** @param {Sequence} sequence @param {boolean} inNewTab */
  function open(sequence, inNewTab) {
    const url = addressOf(requestsUrl, sequence);
    if (url === "") return false;
    if (inNewTab) window.open(url, "_blank", "noopener");
    else location.assign(url);
    return true;
  }

  const picture = createPicture(byId("picture"), { getRing, getView: () => view, setView, open });
  const detail = createDetail({ requestsUrl });
  const charts = createSizeCharts();
  const link = openStepsLink({
    url: new URL(socketPath, location.href.replace(/^http/, "ws")).href,
    chosen: engine,
    onChange(next) {
      if (next.ring !== getRing()) {
        view = following(view);
        picture.restart();
      }
      known = next;
      goToPlace();
      requestRender();
    },
  });
  const head = createHead(root, {
    onRetry: link.retryNow,
    onPause: () => withRing((ring) => setView(view.right === null ? stopped(view, ring) : following(view))),
    onZoom: (by) => withRing((ring) => setView(zoomed(view, by, ring))),
  });

  /** Goes, once there are steps, where the address points. */
  function goToPlace() {
    const ring = getRing();
    if (wanted === null || ring === null || !known?.hasHistory) return;
    const found = find(ring, wanted);
    wanted = null;
    show(byId("place-gone"), found === null);
    if (found !== null) view = selecting({ ...view, lane: found.lane }, found.column, ring);
  }

  /** Has the address name what is selected, a while later: browsers want it seldom. @param {number | null} step */
  function tellAddress(step) {
    clearTimeout(addressing);
    if (wanted !== null) return;
    addressing = setTimeout(() => {
      const { pathname, search, hash } = location;
      if (hash !== hashOf(step)) history.replaceState(null, "", `${pathname}${search}${hashOf(step)}`);
    }, ADDRESS_REST_MS);
  }

  addEventListener("hashchange", () => {
    wanted = placeIn(location.hash);
    goToPlace();
    requestRender();
  });

  /** @param {(ring: import("./steps_ring.js").StepsRing) => void} act */
  function withRing(act) {
    const ring = getRing();
    if (ring !== null) act(ring);
  }

  function requestRender() {
    if (isRequested) return;
    isRequested = true;
    requestAnimationFrame(() => {
      isRequested = false;
      render();
    });
  }

  function render() {
    if (known === null) return;
    head.render(known, view);
    picture.render(view);
    withRing((ring) => {
      const selected = selectedIn(view, ring);
      const column = selected === null ? null : ring.at(selected);
      detail.render(column);
      if (column !== told) tellAddress(column?.row?.step ?? null);
      told = column;
      charts.render(ring, performance.now());
    });
  }

  addEventListener("online", link.retryNow);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") link.retryNow();
  });
}

start(byId("steps"));
