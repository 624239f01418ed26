/**
 * The conversation as the playground shows it; text is only ever set as text.
 *
 * @typedef {import("./playground_body.js").Message} Message
 * @typedef {import("./promptstream.js").TokenEntry} TokenEntry
 */
import { create } from "./dom.js";

const ROLES = { system: "System", user: "You", assistant: "Model" };
const MOST_ENTRIES = 500;

/** @typedef {ReturnType<typeof createTalk>} Talk */

/**
 * Owns what was said and its list on the page.
 *
 * @param {HTMLElement} list
 */
export function createTalk(list) {
  /** @type {{message: Message, item: HTMLElement, text: HTMLElement, entries: TokenEntry[]}[]} */
  let turns = [];

  /** @param {Message["role"]} role @param {string} content */
  function add(role, content) {
    const text = create("div", { className: "said-text", text: content });
    const label = create("span", { className: "said-role", text: ROLES[role] });
    const item = create("li", { className: "said", data: { role } }, [label, text]);
    turns.push({ message: { role, content }, item, text, entries: [] });
    list.append(item);
    list.scrollTop = list.scrollHeight;
  }

  /** Takes the newest turn back, and gives what it said. @returns {string} */
  function drop() {
    const turn = turns.pop();
    turn?.item.remove();
    return turn?.message.content ?? "";
  }

  return {
    add,
    drop,
    /** @returns {Message[]} */
    messages: () => turns.map(({ message }) => ({ ...message })),
    get isEmpty() {
      return turns.length === 0;
    },
    /** Who spoke last. */
    get lastRole() {
      return turns.at(-1)?.message.role ?? null;
    },
    clear() {
      turns = [];
      list.replaceChildren();
    },
    /** The newest turn is being spoken, or ended. @param {boolean} isRunning @param {string} [end] why, where that is worth a word */
    mark(isRunning, end = "") {
      const turn = turns.at(-1);
      if (!turn) return;
      turn.item.dataset.state = isRunning ? "running" : "ended";
      if (end !== "") turn.item.append(create("span", { className: "said-end", text: end }));
      if (!isRunning && turn.entries.length > 0) turn.item.append(tableOf(turn.entries));
    },
    /** @param {string} added to the newest turn @param {TokenEntry[]} entries */
    extend(added, entries) {
      const turn = turns.at(-1);
      if (!turn) return;
      const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
      turn.message.content += added;
      turn.text.append(added);
      turn.entries.push(...entries);
      if (isAtEnd) list.scrollTop = list.scrollHeight;
    },
  };
}

/** @param {TokenEntry[]} entries */
function tableOf(entries) {
  const rows = entries.slice(0, MOST_ENTRIES).map(({ token, logprob, top }) =>
    create("tr", {}, [
      create("th", { scope: "row" }, [create("code", { text: JSON.stringify(token) })]),
      create("td", { className: "end num", text: probability(logprob) }),
      create("td", {}, [create("code", { text: top.map(inWords).join("  ") })]),
    ]),
  );
  const heads = ["Token", "Probable", "Most probable"].map((text) => create("th", { scope: "col", text }));
  const table = create("table", { className: "table" }, [
    create("thead", {}, [create("tr", {}, heads)]),
    create("tbody", {}, rows),
  ]);
  const about = entries.length > MOST_ENTRIES ? `, the first ${MOST_ENTRIES}` : "";
  const scroll = create("div", { className: "scroll", role: "region", tabIndex: 0, ariaLabel: "Tokens" }, [table]);
  return create("details", { className: "probable" }, [
    create("summary", { text: `How probable its ${entries.length} tokens were${about}` }),
    scroll,
  ]);
}

/** @param {{token: string, logprob: number | null}} candidate */
function inWords({ token, logprob }) {
  return `${JSON.stringify(token)} ${probability(logprob)}`;
}

/** @param {number | null} logprob */
function probability(logprob) {
  return logprob === null ? "–" : `${(Math.exp(logprob) * 100).toFixed(1)} %`;
}
