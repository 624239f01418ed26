/** The token without which the server takes nothing. Pure. */

/**
 * The newest token. Signing in makes a new one, in whatever window; pages that are open were drawn with the one before.
 *
 * @param {string} drawn the page's own
 * @param {string} [cookies] the document's
 * @returns {string}
 */
export function currentToken(drawn, cookies = globalThis.document?.cookie ?? "") {
  return /(?:^|;\s*)csrftoken=([^;]+)/.exec(cookies)?.[1] ?? drawn;
}
