// The page of a comparison can be asked: what it says follows from the figures of its answer alone.
"use strict";
(() => {
  const holder = document.getElementById("explore-data");
  const section = document.getElementById("explore");
  if (!holder || !section || typeof Plotly === "undefined") return;
  const data = JSON.parse(holder.textContent);
  const at = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const layout = (more) => ({
    modebar: {bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: colour("--link")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--text"), size: 13},
    margin: {l: 8, r: 16, t: 8, b: 44}, ...more,
  });
  const axis = (more) => ({
    automargin: true, gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), ...more,
  });
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]],
  };
  const grid = data.what_if;
  const narrow = () => window.innerWidth < 640;
  const short = (name) => (narrow() && name.length > 16 ? name.replace(/([@(])/g, "<br>$1") : name);

  // --- the answer at other settings ------------------------------------------------------------------------
  const between = (xs, ys, x) => {
    const known = xs.map((each, index) => [each, ys[index]]).filter((pair) => pair[1] !== null);
    if (!known.length) return null;
    if (x <= known[0][0]) return known[0][1];
    for (let index = 1; index < known.length; index += 1) {
      const [x0, y0] = known[index - 1];
      const [x1, y1] = known[index];
      if (x <= x1) return Math.exp(Math.log(y0) + ((x - x0) / (x1 - x0)) * Math.log(y1 / y0));
    }
    return known[known.length - 1][1];
  };
  const logs = grid ? grid.exponents.map(Math.log) : [0];
  const configured = grid ? grid.first_accepted[grid.exponents.indexOf(1)] : 1;
  const drafts = grid && grid.policies.some((each) => each.by_acceptance.some((one) => one !== 1));
  // The slider runs from the fewest accepted drafts to the most; `null` is the study's own acceptance.
  const state = {log: 0, gpus: data.gpus, price: null, off: new Set()};
  const steps = 100;
  const span = logs[logs.length - 1] - logs[0];
  const logOf = (position) => logs[logs.length - 1] - (position / steps) * span;
  const positionOf = (log) => Math.round(((logs[logs.length - 1] - log) / (span || 1)) * steps);

  const asked = () => data.policies.map((policy) => {
    const row = grid && grid.policies.find((each) => each.policy === policy.name);
    const accepted = row ? between(logs, row.by_acceptance, state.log) : 1;
    const scaled = row ? row.by_gpus[grid.gpus.indexOf(state.gpus)] : 1;
    const factor = accepted === null || scaled === null ? null : accepted * scaled;
    return {...policy, factor, seconds: factor === null ? null : policy.s_per_million * factor};
  });

  const ratios = (rows) => {
    const base = rows.find((each) => each.name === data.baseline);
    return rows.map((row) => {
      if (row.seconds === null || base.seconds === null) return {...row, gain: null, low: null, high: null};
      const moved = base.factor / row.factor;
      const interval = row.interval || [null, null];
      const own = row.name === data.baseline;
      return {...row, gain: own ? 1 : row.speedup * moved, low: own ? 1 : interval[0] && interval[0] * moved,
        high: own ? 1 : interval[1] && interval[1] * moved};
    });
  };
  const number = (value, digits = 4) => Number(value.toPrecision(digits)).toLocaleString("en-US", {maximumSignificantDigits: digits});

  const say = (rows) => {
    const ranked = rows.filter((row) => row.rank > 0 && row.seconds !== null && !state.off.has(row.name));
    if (!ranked.length) return "No ranked policy is switched on.";
    const best = ranked.reduce((one, other) => (other.seconds < one.seconds ? other : one));
    const base = rows.find((each) => each.name === data.baseline);
    const sure = best.name === data.baseline || (best.low !== null && best.low > 1);
    const chosen = sure ? best : base;
    const usd = (row) => (state.price ? `, ${number((row.seconds * row.gpus * (state.gpus / data.gpus) * state.price) / 3600)} USD` : "");
    const study = state.log === 0 && state.gpus === data.gpus;
    const where = study ? "As in the study" : "At these settings, over the first steps";
    const first = `${where}: ${chosen.name}, ${number(chosen.seconds)} s a million trained tokens${usd(chosen)}`;
    if (best === base) return `${first}; no policy that is switched on is faster.`;
    const interval = best.low === null ? " (no interval)" : ` [${best.low.toFixed(2)}, ${best.high.toFixed(2)}]`;
    if (!sure) return `${first}; the fastest, ${best.name}, gains ${best.gain.toFixed(2)}x${interval}, which is not above 1.`;
    return `${first}: ${best.gain.toFixed(2)}x${interval} as fast as ${base.name}${usd(base) ? ` (${usd(base).slice(2)})` : ""}.`;
  };

  const draw = () => {
    const rows = ratios(asked());
    at("asked").textContent = say(rows);
    const on = rows.filter((row) => !state.off.has(row.name) && row.seconds !== null).reverse();
    const base = rows.find((row) => row.name === data.baseline);
    const reach = (row, end) => (end ? Math.abs(base.seconds / end - row.seconds) : 0);
    Plotly.react(at("bars"), [{
      type: "bar", orientation: "h", y: on.map((row) => short(row.name)), x: on.map((row) => row.seconds),
      marker: {color: on.map((row) => (row.rank > 0 ? colour("--bar") : colour("--line")))},
      error_x: {
        type: "data", symmetric: false, color: colour("--text"),
        array: on.map((row) => (row === base ? null : reach(row, row.low))),
        arrayminus: on.map((row) => (row === base ? null : reach(row, row.high))),
      },
      text: on.map((row) => `${number(row.seconds)} s` + (row.rank > 0 ? "" : " (not ranked)")),
      textposition: "inside", insidetextanchor: "start", insidetextfont: {color: on.map((row) => (row.rank > 0 ? "#010101" : colour("--text")))},
      hovertemplate: "%{y}<br>%{x:.4g} s a million trained tokens<extra></extra>",
    }], layout({
      height: 70 + 42 * Math.max(on.length, 1), showlegend: false, dragmode: false,
      xaxis: axis({title: {text: "s a million trained tokens"}, rangemode: "tozero"}), yaxis: axis({}),
    }), {...config, displayModeBar: false});
    at("bars").dataset.policies = on.map((row) => row.name).reverse().join("|");
    if (grid) at("acceptance-value").textContent = `${(100 * configured ** Math.exp(state.log)).toFixed(0)} %`;
  };

  // --- workers over time -----------------------------------------------------------------------------------
  const gantt = () => {
    const policy = at("gantt-policy").value;
    const spans = data.gantt.policies[policy];
    const workers = 1 + spans.reduce((most, span) => Math.max(most, span[0]), 0);
    const traces = Object.entries(data.gantt.causes).map(([cause, [fill, words]]) => {
      const own = spans.filter((span) => span[1] === cause);
      return {
        type: "bar", orientation: "h", name: words, y: own.map((span) => span[0]), base: own.map((span) => span[2]),
        x: own.map((span) => span[3]), width: 0.92, marker: {color: fill, line: {width: 0}},
        hovertemplate: `worker %{y}<br>${words}<br>%{base:.1f} s, for %{x:.1f} s<extra></extra>`,
      };
    }).filter((trace) => trace.x.length);
    const longest = Math.max(...Object.values(data.gantt.policies).flat().map((span) => span[2] + span[3]));
    Plotly.react(at("gantt"), traces, layout({
      barmode: "overlay", bargap: 0, hovermode: "closest", dragmode: "zoom", showlegend: false,
      height: Math.min(120 + 22 * workers, 620), margin: {l: 8, r: 16, t: 36, b: 44},
      xaxis: axis({title: {text: `seconds since the start of RL step ${data.gantt.step}`}, range: [0, longest]}),
      yaxis: axis({title: {text: "worker"}, autorange: "reversed", fixedrange: workers < 3, dtick: workers > 16 ? undefined : 1}),
    }), config);
    at("gantt").dataset.policy = policy;
    at("gantt-legend").replaceChildren(...traces.map((trace) => {
      const item = document.createElement("li");
      const swatch = Object.assign(document.createElement("span"), {className: "swatch"});
      swatch.style.background = trace.marker.color;
      item.append(swatch, trace.name);
      return item;
    }));
  };

  // --- controls --------------------------------------------------------------------------------------------
  const reset = () => {
    Object.assign(state, {log: 0, gpus: data.gpus, price: null, off: new Set()});
    at("acceptance").value = positionOf(0);
    at("gpus").value = String(data.gpus);
    at("price").value = "";
    for (const box of document.querySelectorAll("#policies input")) box.checked = true;
    draw();
  };
  section.hidden = false;
  for (const policy of data.policies) {
    const box = Object.assign(document.createElement("input"), {type: "checkbox", checked: true, value: policy.name});
    box.addEventListener("change", () => {
      if (box.checked) state.off.delete(policy.name); else state.off.add(policy.name);
      draw();
    });
    const label = document.createElement("label");
    label.append(box, ` ${policy.name}`);
    at("policies").append(label);
  }
  at("ask-acceptance").hidden = !drafts;
  at("ask-gpus").hidden = !grid || grid.gpus.length < 2;
  for (const gpus of grid ? grid.gpus : [data.gpus]) {
    at("gpus").append(new Option(`${gpus.toLocaleString("en-US")}${gpus === data.gpus ? " (the study's)" : ""}`, String(gpus)));
  }
  at("acceptance").addEventListener("input", () => {
    const position = Number(at("acceptance").value);
    state.log = position === positionOf(0) ? 0 : logOf(position);
    draw();
  });
  at("gpus").addEventListener("change", () => { state.gpus = Number(at("gpus").value); draw(); });
  at("price").addEventListener("input", () => { state.price = Number(at("price").value) || null; draw(); });
  at("reset").addEventListener("click", reset);
  if (data.gantt) {
    for (const name of Object.keys(data.gantt.policies)) at("gantt-policy").append(new Option(name, name));
    at("gantt-policy").addEventListener("change", gantt);
  } else {
    at("gantt-part").hidden = true;
  }
  const comparable = data.policies.length > 1;
  for (const part of section.querySelectorAll(".ask")) part.hidden = !comparable;
  const all = () => { if (comparable) draw(); if (data.gantt) gantt(); };
  if (comparable) reset();
  all();
  document.addEventListener("themechange", all);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
