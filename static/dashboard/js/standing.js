/**
 * The parts of the Tuning page that the server draws and that change with the versions: what is tried, the history, and
 * what fights what of the values in force. Fetched anew when a version comes, and every few seconds while something is
 * watched, tried or still measured.
 *
 * @typedef {import("./state.js").State} State
 */
import { readPart } from "./parts.js";
import { sendOnce } from "./tenants.js";

const EVERY_MS = 5000;
const PARTS = ["trial", "standing", "conflicts-in-force"];

/**
 * @param {string} url
 * @param {(url: string) => Promise<Document>} [read]
 * @returns {{render: (state: State) => void}}
 */
export function createStanding(url, read = readPart) {
  let isReading = false;
  let readAt = Date.now();
  let told = "";

  async function refresh() {
    isReading = true;
    readAt = Date.now();
    const fresh = await read(url).catch(() => null);
    isReading = false;
    for (const id of fresh === null ? [] : PARTS) replace(id, fresh?.getElementById(id) ?? null);
  }

  return {
    render({ versions, frame, now }) {
      const shown = document.getElementById("standing");
      const newest = versions[0]?.number;
      if (shown === null || newest === undefined || isReading || document.visibilityState === "hidden") return;
      const applied = (frame?.engines ?? []).map((engine) => engine.tunables_version).join();
      const news = `${newest} ${frame?.announced_version} ${applied}`;
      const isOutdated = Number(shown.dataset.newest) !== newest;
      const isDue = now - readAt >= EVERY_MS && (shown.dataset.lively === "true" || isOutdated);
      if (isDue || (news !== told && told !== "")) void refresh();
      told = news;
    },
  };
}

/** @param {string} id @param {HTMLElement | null} part */
function replace(id, part) {
  const shown = document.getElementById(id);
  if (part === null || shown === null) return;
  // What somebody is about to press stays where it is; the next time will do.
  if (shown.contains(document.activeElement) || part.isEqualNode(shown)) return;
  const taken = document.adoptNode(part);
  for (const form of taken.querySelectorAll("form[data-once]")) sendOnce(/** @type {HTMLFormElement} */ (form));
  shown.replaceWith(taken);
}
