/** A comparison's page: it is read again while the comparison runs. */
import { byId, find } from "../../dom.js";
import { morph } from "../../morph.js";
import { readOften, readPart } from "../../parts.js";

const region = byId("refreshed");

async function refresh() {
  if (byId("three-ways").dataset["over"] === "true") return;
  const fresh = await readPart(region.dataset["url"] ?? "");
  morph(byId("three-ways"), find(fresh, "#three-ways"));
}

readOften(refresh, { say: (text) => (byId("refresh-status").textContent = text) });
