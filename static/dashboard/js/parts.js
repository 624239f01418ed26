/** Parts of a page that the server renders, read again from time to time. */

const EVERY_MS = 2000;

/** The session is over: the server sent a page to sign in at. */
export class SignedOut extends Error {}

/**
 * What the server renders at this address. A request of this kind parses what it gets itself, so that no text is ever
 * turned into elements here.
 *
 * @param {string} address
 * @returns {Promise<Document>}
 */
export function readPart(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.timeout = 10_000;
    request.onload = () => {
      const path = new URL(request.responseURL || address, location.href).pathname;
      if (path !== new URL(address, location.href).pathname) reject(new SignedOut());
      else if (request.status === 200 && request.responseXML) resolve(request.responseXML);
      else reject(new Error(`the server answers ${request.status}`));
    };
    request.onerror = request.ontimeout = () => reject(new Error("the server does not answer"));
    request.send();
  });
}

/**
 * Calls `read` every two seconds while the page is seen, one call at a time, and `say` with what is wrong: empty where
 * nothing is. Once the session has ended, it is called again when the page comes back into sight.
 *
 * @param {() => Promise<void>} read
 * @param {{say: (text: string) => void, everyMs?: number}} options
 */
export function readOften(read, { say, everyMs = EVERY_MS }) {
  const again = async () => {
    try {
      if (!document.hidden) {
        await read();
        say("");
      }
    } catch (error) {
      if (error instanceof SignedOut) {
        say("You are signed out: reload the page.");
        document.addEventListener("visibilitychange", () => void again(), { once: true });
        return;
      }
      say(`Not up to date: ${error instanceof Error ? error.message : "it cannot be read"}.`);
    }
    setTimeout(again, everyMs);
  };
  setTimeout(again, everyMs);
}
