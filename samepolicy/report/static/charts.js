// Plotly figures: drawn when they come into sight, in the colours and the language of the page.
SP.charts = (() => {
  const shown = new Map();
  const PAPER = { half: 306, whole: 660 }; // widths on paper, px; a figure drawn for a screen is cut off there
  let printing = false;
  const config = { displaylogo: false, responsive: true, plotlyServerURL: "", modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], scrollZoom: false };

  function layout(given) {
    const ink = SP.css("--soft");
    const line = SP.css("--line");
    const made = JSON.parse(JSON.stringify(given || {}));
    delete made.height;
    Object.assign(made, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, hovermode: made.hovermode || "closest",
      font: { family: SP.css("--sans"), size: 12, color: ink }, modebar: { bgcolor: "rgba(0,0,0,0)", color: ink },
      hoverlabel: { bgcolor: SP.css("--panel"), bordercolor: SP.css("--strong"), font: { color: SP.css("--ink") } },
    });
    made.margin = Object.assign({ l: 58, r: 18, t: 20, b: 46 }, made.margin);
    for (const [name, axis] of Object.entries(made)) {
      if (!/^[xy]axis\d*$/.test(name)) continue;
      Object.assign(axis, { gridcolor: line, zerolinecolor: SP.css("--strong"), linecolor: SP.css("--strong") });
      axis.automargin = true;
      if (axis.title && axis.title.text) axis.title = { text: SP.said(axis.title.text), standoff: 8, font: { size: 12 } };
      if (axis.showgrid === undefined && name.startsWith("x")) axis.showgrid = false;
    }
    for (const note of made.annotations || []) note.text = SP.said(note.text);
    if (made.legend) Object.assign(made.legend, { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", title: { text: "" }, font: { size: 11.5 } });
    return made;
  }
  function traces(given) {
    const empty = SP.dark() ? "#22262b" : "#eef2f6";
    const rising = SP.dark() ? [[0, "#1f2c3c"], [0.4, "#2f6fb0"], [0.75, "#7fb4e6"], [1, "#e9f3fd"]] : [[0, empty], [0.15, "#cfdcea"], [0.4, "#7fa8cf"], [0.7, "#2f6fb0"], [1, "#0b2c54"]];
    return given.map((trace) => {
      const made = Object.assign({}, trace);
      if (made.type === "heatmap") made.colorscale = rising;
      if (made.type === "bar" && made.marker && made.marker.color === "#7f7f7f") made.marker = { color: SP.dark() ? "#6b737e" : "#9aa1ab", line: { width: 0 } };
      if (made.line && made.line.color === "black") made.line = Object.assign({}, made.line, { color: SP.css("--ink") });
      if (made.type === "waterfall") made.x = made.x.map((text) => SP.said(text));
      return made;
    });
  }

  // From a point of a figure to the token that it stands for, [response, position].
  const links = {
    layers: (point) => SP.data.layer_tokens[point.pointIndex[1]],
    ledger: (point) => (SP.data.ledger.rows.filter((row) => typeof row.nats === "number")[point.pointNumber - 1] || {}).token,
  };

  function draw(element) {
    const figure = shown.get(element);
    if (!window.Plotly || !figure) return;
    element.dataset.drawn = "1";
    const made = figure();
    if (!made) return;
    const look = layout(made.layout);
    if (printing) Object.assign(look, { autosize: false, width: element.closest(".two") ? PAPER.half : PAPER.whole, height: element.clientHeight });
    window.Plotly.react(element, traces(made.data), look, config);
    const token = links[element.dataset.chart];
    if (token && !element.dataset.linked) {
      element.dataset.linked = "1";
      element.on("plotly_click", (event) => {
        const at = token(event.points[0]);
        if (at) SP.choose(at[0], at[1], { scroll: true });
      });
    }
  }
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
    }
  }, { rootMargin: "300px" });

  function place(element, figure) {
    shown.set(element, figure);
    if (element.dataset.drawn) draw(element);
    else watch.observe(element);
  }
  const again = () => shown.forEach((_, element) => { if (element.dataset.drawn) draw(element); });
  const all = () => shown.forEach((_, element) => { if (!element.dataset.drawn) draw(element); });

  // Plotly's code stands in the page as text and is run once everything else works: reading it takes a moment.
  function load() {
    if (window.Plotly) return;
    const text = SP.byId("plotly");
    document.head.append(SP.make("script", {}, text.textContent));
    text.remove();
    shown.forEach((_, element) => { watch.unobserve(element); watch.observe(element); });
    document.documentElement.dataset.charts = String(Math.round(performance.now()));
  }

  function start() {
    for (const element of document.querySelectorAll("[data-chart]")) {
      const figure = SP.data.figures[element.dataset.chart];
      const box = element.closest("[data-if]");
      if (figure && ["trend", "layers"].includes(element.dataset.chart)) element.style.height = `${figure.layout.height}px`;
      if (figure) place(element, () => figure);
      else if (box) box.hidden = true;
      else empty(element);
    }
    curves();
    SP.on("theme", again);
    SP.on("language", again);
    window.addEventListener("beforeprint", () => { printing = true; load(); again(); all(); });
    window.addEventListener("afterprint", () => { printing = false; again(); });
    (window.requestIdleCallback || setTimeout)(load, { timeout: 1500 });
  }
  function empty(element) {
    element.classList.add("empty");
    element.append(SP.word("this run does not have what this figure takes"));
  }

  function curves() {
    const found = SP.data.figures.curves;
    const tabs = SP.byId("curve-by");
    const of = SP.byId("curve-of");
    const names = Object.keys(found);
    const chart = SP.byId("curve");
    if (!names.length) return empty(chart);
    let by = names.includes(SP.address().by) ? SP.address().by : names[0];
    for (const option of [...of.options]) if (!found[by][option.value]) option.remove();
    if (found[by][SP.address().of]) of.value = SP.address().of;
    const pick = () => {
      for (const tab of tabs.children) tab.setAttribute("aria-pressed", tab.dataset.by === by);
      place(chart, () => found[by][of.value]);
    };
    for (const name of names) {
      tabs.append(SP.make("button", { type: "button", "data-by": name, onclick: () => { by = name; pick(); SP.remember("by", by === names[0] ? "" : by); } }, SP.word(`by ${name}`)));
    }
    of.addEventListener("change", () => { pick(); SP.remember("of", of.value === of.options[0].value ? "" : of.value); });
    pick();
  }
  return { start, place, all };
})();
