// The map of the best drafts, one context and one acceptance at a time.
"use strict";
(() => {
  const holder = document.getElementById("kmap-data");
  const section = document.getElementById("kmap");
  if (!holder || !section || typeof Plotly === "undefined") return;
  const data = JSON.parse(holder.textContent);
  const at = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  section.hidden = false;
  const rates = data.rates; // the first one is the configured law
  const told = (rate) => (rate < 0 ? "as configured" : `each further draft accepted with ${rate.toFixed(2)}`);

  const draw = () => {
    const context = Number(at("context").value);
    const rate = rates[Number(at("rate").value)];
    const cells = data.cells.filter((cell) => cell.context === context && cell.rate === rate);
    const pays = cells.filter((cell) => cell.draft !== "off");
    const sure = pays.filter((cell) => cell.low > 1);
    const batches = (some) => some.map((cell) => cell.batch.toLocaleString("en-US")).join(", ");
    const sureAt = sure.length === pays.length ? "each of them" : sure.length ? `batch ${batches(sure)}` : "none of them";
    at("rate-value").textContent = told(rate);
    at("told").textContent = pays.length
      ? `At ${context.toLocaleString("en-US")} tokens of context, acceptance ${told(rate)}, drafting pays at batch ` +
        `${pays.map((cell) => `${cell.batch.toLocaleString("en-US")} (${cell.draft})`).join(", ")}; within the error of the step times that is sure at ${sureAt}.`
      : `At ${context.toLocaleString("en-US")} tokens of context, acceptance ${told(rate)}, drafting pays at no batch.`;
    Plotly.react(at("kmap-chart"), [{
      type: "bar", x: cells.map((cell) => String(cell.batch)), y: cells.map((cell) => cell.gain),
      marker: {color: cells.map((cell) => (cell.draft === "off" ? colour("--line") : colour("--bar")))},
      error_y: {
        type: "data", symmetric: false, color: colour("--text"),
        array: cells.map((cell) => cell.high - cell.gain), arrayminus: cells.map((cell) => cell.gain - cell.low),
      },
      text: cells.map((cell) => cell.draft), textposition: "inside", insidetextanchor: "start", insidetextfont: {color: "#010101"},
      hovertemplate: "batch %{x}: %{text}<br>%{y:.3f}x<extra></extra>",
    }], {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--text"), size: 13},
      margin: {l: 8, r: 8, t: 8, b: 44}, height: 340, showlegend: false, dragmode: false,
      xaxis: {type: "category", title: {text: "requests that one worker runs"}, automargin: true},
      yaxis: {title: {text: "gain in tokens/s (x)"}, automargin: true, gridcolor: colour("--line"), rangemode: "tozero"},
    }, {responsive: true, displayModeBar: false});
  };

  for (const context of data.contexts) at("context").append(new Option(`${context.toLocaleString("en-US")} tokens`, String(context)));
  at("rate").max = String(rates.length - 1);
  at("ask-rate").hidden = rates.length < 2;
  at("context").addEventListener("change", draw);
  at("rate").addEventListener("input", draw);
  document.addEventListener("themechange", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
