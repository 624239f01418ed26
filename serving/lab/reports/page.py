"""The page that a report is as one file: its frame, and the script that draws its charts."""

from __future__ import annotations

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: light-dark(#1f1d1a, #ebe7e0); --quiet: light-dark(#615b51, #a8a094);
  --ground: light-dark(#fdfcfa, #1d1b19); --line: light-dark(#dfdbd1, #322f2a); }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1rem; margin-top: 2rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }}
dt {{ color: var(--quiet); }} dd {{ margin: 0; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child {{ text-align: left; }} .scroll {{ overflow-x: auto; }}
#charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1.5rem; }}
#charts div {{ position: relative; height: 16rem; }}
</style></head><body>
<main>
{body}
</main>
<script type="application/json" id="plots">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body></html>
"""

SCRIPT: Final = """
const colors = ["#b8500f", "#44658c", "#2f7370", "#7562ab", "#857d70"];
const ink = getComputedStyle(document.body).color;
for (const plot of JSON.parse(document.getElementById("plots").textContent)) {
  const box = document.createElement("div");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", plot.title);
  box.append(canvas);
  document.getElementById("charts").append(box);
  const datasets = plot.series.map((series, index) => ({
    label: series.label, data: series.points, showLine: true, pointRadius: 0, borderWidth: 1.5,
    borderColor: colors[index % colors.length], borderDash: series.dashed ? [5, 4] : [],
  }));
  for (const line of (plot.lines ?? []).filter((line) => line.axis === "y")) {
    const xs = plot.series.flatMap((series) => series.points.map((point) => point.x));
    datasets.push({ label: line.label, showLine: true, pointRadius: 0, borderColor: "#2b6a3a", borderDash: [4, 3],
      data: [{ x: Math.min(...xs), y: line.value }, { x: Math.max(...xs), y: line.value }] });
  }
  new Chart(canvas, { type: "scatter", data: { datasets }, options: {
    animation: false, maintainAspectRatio: false,
    plugins: {
      title: { display: true, text: plot.title, color: ink },
      legend: { position: "bottom", labels: { color: ink } },
    },
    scales: {
      x: { title: { display: true, text: `${plot.x.label}, ${plot.x.unit}`, color: ink }, ticks: { color: ink } },
      y: {
        beginAtZero: true,
        title: { display: Boolean(plot.y.unit), text: plot.y.unit, color: ink },
        ticks: { color: ink },
      },
    },
  } });
}
"""
