// The newest step, the state of the folder, the bar, the keys, and the start of everything.
(() => {
  const { held } = SP.stream;
  const tiles = [["logp_diff.mean", "Mean abs d", "nats"], ["prob_diff.mean", "Probability difference", ""], ["ratio.mean", "Mean ratio", ""], ["k3.mean", "Mean k3", "nats"], ["ess_token.ess", "Effective share of tokens", "ESS"]];
  SP.open = (step) => { location.href = `/step/${step}`; };
  // The newest step that was measured, or the responses without a step where there is nothing else.
  SP.newest = () => {
    for (let i = held.steps.length - 1; i >= 0; i--) if (held.responses[i]) return i;
    return -1;
  };

  function tile(title, value, unit, ...below) {
    return SP.make("div", {}, SP.make("dt", {}, SP.word(title)), SP.make("dd", {}, value, " ", SP.make("small", {}, unit)), SP.make("dd", { class: "usual" }, ...below));
  }
  function judged(series, value) {
    const ranges = held.ranges[series] || [];
    const good = (r) => (r.low === null || value >= r.low) && (r.high === null || value <= r.high);
    const best = ranges.find(good) || ranges[0];
    if (!best || !Number.isFinite(value)) return [""];
    const text = best.high === null || series === "ess_token.ess" ? `≥ ${best.low}` : best.low === null || best.low === 0 ? `≤ ${best.high}` : `${best.low} – ${best.high}`;
    return [SP.make("span", { class: `state ${good(best) ? "in" : "out"}`, title: best.source }, SP.said(good(best) ? "usual" : "beyond the usual")), " ", SP.make("span", { class: "bounds" }, text)];
  }
  function now() {
    const at = SP.newest();
    const { state, marks } = held;
    const step = at < 0 ? null : held.steps[at];
    SP.byId("newest").textContent = step === null ? SP.said("Waiting for the first step") : step < 0 ? SP.said("A run without steps") : SP.said("Step {n}", { n: step });
    document.title = `${marks.active.length ? "▲ " : ""}${step === null || step < 0 ? "" : `${step} · `}${state.title || ""} · samepolicy`;
    const count = at < 0 ? 0 : held.outside[at];
    SP.byId("judged").textContent = at < 0 ? SP.said("Parts are shown as soon as a monitor has written them.") : count ? SP.said("Values outside every usual range: {n}.", { n: count }) : SP.said("None of its values lies outside its usual ranges.");
    const open = SP.byId("open");
    open.hidden = at < 0;
    if (at >= 0) {
      open.firstChild.href = `/step/${step}`;
      open.firstChild.textContent = SP.said("Open its report");
    }
    const said = [SP.said("steps measured: {n}", { n: SP.number(held.steps.filter((s, i) => s >= 0 && held.responses[i]).length) })];
    if (state.waiting) said.push(SP.said("still to be measured, the newest first: {n}", { n: SP.number(state.waiting) }));
    if (state.writing) said.push(SP.said("being written: {n}", { n: SP.number(state.writing) }));
    if (state.damaged) said.push(SP.said("damaged parts left out: {n}", { n: SP.number(state.damaged) }));
    SP.byId("counted").textContent = said.join(" · ");
    const sides = Object.entries(state.sides || {}).filter(([, text]) => text);
    SP.byId("declared").textContent = sides.map(([name, text]) => `${SP.said(name)}: ${text}`).join("   ");
    const problem = state.there === false ? SP.said("The folder is gone; what was measured is still shown.") : state.problem;
    SP.byId("problem").textContent = problem || "";
    SP.byId("problem").hidden = !problem;
    SP.byId("tiles").replaceChildren(...(at < 0 ? [] : [
      ...tiles.map(([series, title, unit]) => tile(title, SP.number(held.values[series][at], series === "ratio.mean" ? 4 : 3), SP.said(unit), ...judged(series, held.values[series][at]))),
      tile("Tokens measured", SP.number(held.tokens[at]), "", SP.said("responses: {n}", { n: SP.number(held.responses[at]) })),
    ]));
    const active = marks.active.map((series) => {
      const mark = marks.listed.findLast((m) => m[0] === "alarm" && m[2] === series);
      return SP.make("li", {}, SP.make("b", {}, SP.said(SP.lines.named(series))), mark ? SP.make("span", {}, ` ${SP.said("since step {n}", { n: mark[1] })}: ${mark[3]}`) : "");
    });
    SP.byId("active").replaceChildren(...(active.length ? active : [SP.make("li", { class: "soft" }, SP.said("none"))]));
  }

  function bar() {
    const flip = () => { const next = SP.dark() ? "light" : "dark"; SP.setTheme(next); SP.store.set("samepolicy-theme", next); };
    const speak = () => { const next = SP.language() === "zh" ? "en" : "zh"; SP.setLanguage(next); SP.store.set("samepolicy-language", next); };
    const pause = SP.byId("pause");
    const hold = () => { const on = pause.getAttribute("aria-pressed") !== "true"; pause.setAttribute("aria-pressed", String(on)); SP.stream.pause(on); };
    const step = SP.byId("step");
    SP.byId("theme").addEventListener("click", flip);
    SP.byId("language").addEventListener("click", speak);
    SP.byId("help").addEventListener("click", () => SP.byId("keys").showModal());
    pause.addEventListener("click", hold);
    SP.byId("go").addEventListener("submit", (event) => {
      event.preventDefault();
      const wanted = Number(step.value);
      const known = step.value.trim() !== "" && Number.isInteger(wanted) && held.steps[SP.stream.place(wanted)] === wanted;
      step.setAttribute("aria-invalid", String(!known));
      step.title = known ? "" : SP.said("There is no such step.");
      if (known) SP.open(wanted);
    });
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || SP.byId("keys").open || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
      const keys = { "/": () => { step.focus(); step.select(); }, "?": () => SP.byId("keys").showModal(), p: hold, t: flip, l: speak };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }
  const links = { open: "connected", away: "no answer, trying again", paused: "paused", token: "the token is missing; open the address that was printed" };
  let state = "waiting";
  function link() {
    const box = SP.byId("link");
    box.className = state;
    box.textContent = SP.said(links[state] || "connecting");
  }

  const wanted = SP.address();
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  SP.setTheme(wanted.theme || SP.store.get("samepolicy-theme") || (prefersDark.matches ? "dark" : "light"));
  prefersDark.addEventListener("change", (event) => { if (!SP.store.get("samepolicy-theme")) SP.setTheme(event.matches ? "dark" : "light"); });
  SP.on("steps", now);
  SP.on("language", () => { now(); link(); });
  SP.on("link", (name) => { state = name; link(); });
  SP.lists.start();
  SP.lines.start();
  bar();
  if ((wanted.lang || SP.store.get("samepolicy-language")) === "zh") SP.setLanguage("zh");
  SP.on("steps", () => { if (held.epoch) document.documentElement.dataset.shown = String(Math.round(performance.now())); });
  SP.stream.load();
})();
