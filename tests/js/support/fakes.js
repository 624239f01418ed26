/** A clock, timers, sockets and chance that obey the test. */

/** Timers over a clock that stands still until `advance`. */
export function fakeTime(start = 1_700_000_000_000) {
  let now = start;
  let lastHandle = 0;
  const due = new Map();
  return {
    clock: () => now,
    timers: {
      setTimeout(call, delay) {
        lastHandle += 1;
        due.set(lastHandle, { call, at: now + delay });
        return lastHandle;
      },
      clearTimeout: (handle) => due.delete(handle),
    },
    numTimers: () => due.size,
    set: (value) => {
      now = value;
    },
    /** Runs what falls due on the way, in order, and lets promises settle in between. */
    async advance(milliseconds) {
      const end = now + milliseconds;
      for (;;) {
        await settle();
        const next = [...due].filter(([, { at }]) => at <= end).sort((one, other) => one[1].at - other[1].at)[0];
        if (next === undefined) break;
        due.delete(next[0]);
        now = Math.max(now, next[1].at);
        next[1].call();
      }
      now = end;
      await settle();
    },
  };
}

/** Lets every promise that can settle do so. */
export async function settle() {
  await new Promise((resolve) => setImmediate(resolve));
}

/** Makes sockets and keeps them: `sockets.at(-1)` is the newest. */
export function fakeSockets() {
  const sockets = [];
  const createSocket = (url) => {
    const socket = {
      url,
      readyState: 0,
      sent: [],
      isClosed: false,
      send: (text) => socket.sent.push(JSON.parse(text)),
      close: () => {
        socket.isClosed = true;
        socket.readyState = 3;
      },
      open() {
        socket.readyState = 1;
        socket.onopen?.({});
      },
      say: (message) => socket.onmessage?.({ data: JSON.stringify(message) }),
      sayText: (data) => socket.onmessage?.({ data }),
      end(code) {
        socket.readyState = 3;
        socket.onclose?.({ code });
      },
    };
    sockets.push(socket);
    return socket;
  };
  return { sockets, createSocket };
}

/** The same numbers for the same seed (mulberry32). */
export function seededRandom(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A whole number from 0 to `below` - 1, and one of several. */
export const under = (random, below) => Math.floor(random() * below);
export const pick = (random, items) => items[under(random, items.length)];
