/** The theme: as the system has it, or light or dark by choice. On every page. */

const THEMES = ["system", "light", "dark"];

/** @returns {string} */
function chosenTheme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** @param {string} theme */
function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // No storage: the choice lasts as long as the page.
  }
}

/**
 * Calls `listener` whenever colours change.
 *
 * @param {() => void} listener
 */
export function onThemeChange(listener) {
  new MutationObserver(listener).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}

/**
 * The colours of these CSS variables as they are now, for a canvas.
 *
 * @template {string} Name
 * @param {readonly Name[]} names without the leading dashes
 * @returns {Record<Name, string>}
 */
export function readColors(names) {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colors = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(colors);
}

const button = document.getElementById("theme");
const label = document.getElementById("theme-name");
if (button && label) {
  label.textContent = chosenTheme();
  button.hidden = false;
  button.addEventListener("click", () => {
    choose(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
    label.textContent = chosenTheme();
  });
}
