// A plain script in the head: the chosen theme is there before anything is painted.
(() => {
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // No storage: the system's theme.
  }
})();
