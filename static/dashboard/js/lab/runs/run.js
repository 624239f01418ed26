/** A run's page: charts, and while it plays how far it is, asked once a second. */
import { byId, setText, show } from "../../dom.js";
import { count, rate } from "../../format.js";
import { plotBoard } from "../plots.js";

const ASK_MS = 1000;
const LONGEST_ASK_MS = 15_000;

const root = byId("run");
const board = plotBoard(byId("run-charts"));
board.draw(JSON.parse(byId("run-plots").textContent || "[]"));
if (root.dataset["over"] !== "true") void follow(root.dataset["url"] ?? "");

/**
 * @typedef {object} RunState
 * @property {string} state
 * @property {boolean} is_over
 * @property {number | null} share
 * @property {number} seconds
 * @property {number} num_due
 * @property {number} num_in_flight
 * @property {number} num_ended
 * @property {number | null} throughput
 * @property {number | null} ttft_p95_ms
 * @property {number | null} itl_p95_ms
 * @property {number} num_refused
 * @property {number} num_failed
 * @property {import("../plots.js").Plot[]} plots
 */

/** @param {string} url */
async function follow(url) {
  let pause = ASK_MS;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (document.hidden) continue;
    try {
      const response = await fetch(url, { headers: { accept: "application/json" } });
      if (!response.ok || response.redirected) throw new Error(String(response.status));
      const state = /** @type {RunState} */ (await response.json());
      if (state.is_over) return location.reload();
      draw(state);
      pause = ASK_MS;
    } catch {
      pause = Math.min(LONGEST_ASK_MS, pause * 2);
      setText(byId("run-words"), "The server does not answer: what is shown is from before.");
    }
  }
}

/** @param {RunState} state */
function draw(state) {
  setText(byId("run-state"), state.state);
  const bar = /** @type {HTMLProgressElement} */ (byId("run-progress"));
  if (state.share === null) bar.removeAttribute("value");
  else bar.value = state.share;
  if (state.state === "waiting") return;
  setText(
    byId("run-words"),
    `${count(Math.round(state.seconds))} s: ${count(state.num_due)} requests were due, ${count(state.num_ended)} have ended.`,
  );
  show(byId("run-figures"), true);
  setText(byId("figure-throughput"), state.throughput === null ? "–" : rate(state.throughput));
  setText(byId("figure-ttft"), state.ttft_p95_ms === null ? "–" : count(Math.round(state.ttft_p95_ms)));
  setText(byId("figure-itl"), state.itl_p95_ms === null ? "–" : count(Math.round(state.itl_p95_ms)));
  setText(byId("figure-flight"), count(state.num_in_flight));
  setText(byId("figure-refused"), count(state.num_refused));
  setText(byId("figure-failed"), count(state.num_failed));
  board.draw(state.plots);
}
