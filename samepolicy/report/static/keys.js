// Keys, the bar, the ladder, and the start of everything.
(() => {
  function gauge() {
    const svg = SP.byId("gauge");
    const gap = SP.data.gap;
    if (!svg || !gap) return;
    const number = (v) => (typeof v === "number" ? v : gap.ratio);
    const [low, high] = [number(gap.low), number(gap.high)];
    const ends = [Math.log10(Math.max(1e-3, Math.min(0.1, low * 0.7))), Math.log10(Math.max(10, high * 1.6))];
    const x = (v) => 4 + (392 * (Math.log10(Math.max(v, 1e-4)) - ends[0])) / (ends[1] - ends[0]);
    const add = (tag, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text) made.textContent = text;
      svg.append(made);
    };
    svg.replaceChildren();
    add("rect", { class: "area", x: 4, y: 8, width: Math.max(0, x(gap.limit) - 4), height: 36, rx: 5 });
    add("text", { class: "zone", x: 12, y: 21 }, SP.said("rounding"));
    add("line", { class: "limit", x1: x(gap.limit), x2: x(gap.limit), y1: 4, y2: 48 });
    add("line", { class: "axis", x1: 4, x2: 396, y1: 52, y2: 52 });
    for (let e = Math.ceil(ends[0]); e <= ends[1]; e++) {
      add("line", { class: "axis", x1: x(10 ** e), x2: x(10 ** e), y1: 50, y2: 56 });
      add("text", { x: x(10 ** e), y: 69, "text-anchor": "middle" }, e >= 0 ? String(10 ** e) : (10 ** e).toFixed(-e));
    }
    add("line", { class: `interval ${gap.place}`, x1: x(low), x2: x(high), y1: 33, y2: 33 });
    add("circle", { class: `dot ${gap.place}`, cx: x(gap.ratio), cy: 33, r: 7 });
  }
  function ladder() {
    for (const button of document.querySelectorAll(".rung")) {
      button.addEventListener("click", () => {
        const open = button.getAttribute("aria-expanded") === "true";
        for (const other of document.querySelectorAll(".rung")) {
          other.setAttribute("aria-expanded", String(other === button && !open));
          SP.byId(other.getAttribute("aria-controls")).hidden = !(other === button && !open);
        }
      });
    }
    const failed = document.querySelector(".rung.failed");
    if (failed) failed.click();
  }
  function ledger() {
    const held = SP.data.ledger || [];
    const rows = (held.rows || held).filter((row) => typeof row.nats === "number");
    const go = (row) => { const at = row && row.token; if (Array.isArray(at)) SP.choose(at[0], at[1], { scroll: true }); else SP.responses.worst(); };
    document.querySelectorAll("#ledger-rows button").forEach((button, i) => button.addEventListener("click", () => go(rows[i])));
  }
  function sides() {
    const box = SP.byId("only-different");
    box.addEventListener("change", () => SP.byId("declared").classList.toggle("only", box.checked));
  }
  function bar() {
    const flip = () => { const next = SP.dark() ? "light" : "dark"; SP.setTheme(next); SP.store.set("samepolicy-theme", next); };
    const speak = () => { const next = SP.language() === "zh" ? "en" : "zh"; SP.setLanguage(next); SP.store.set("samepolicy-language", next); };
    SP.byId("theme").addEventListener("click", flip);
    SP.byId("language").addEventListener("click", speak);
    SP.byId("help").addEventListener("click", () => SP.byId("keys").showModal());
    window.addEventListener("beforeprint", () => {
      if (!SP.dark()) return;
      SP.setTheme("light");
      window.addEventListener("afterprint", () => SP.setTheme("dark"), { once: true });
    });
    const links = [...document.querySelectorAll(".bar nav a")];
    const watch = new IntersectionObserver((entries) => { for (const e of entries) if (e.isIntersecting) links.forEach((a) => a.classList.toggle("here", a.hash === `#${e.target.id}`)); }, { rootMargin: "-80px 0px -65% 0px" });
    for (const section of document.querySelectorAll("main > section")) watch.observe(section);
    document.addEventListener("keydown", (event) => {
      const tag = event.target.tagName;
      if (event.ctrlKey || event.metaKey || event.altKey || SP.byId("keys").open || tag === "SELECT" || (tag === "INPUT" && event.target.type !== "range" && event.target.type !== "checkbox")) return;
      const keys = { j: SP.responses.next, k: SP.responses.previous, "/": () => { SP.byId("search").focus(); SP.byId("search").select(); }, "?": () => SP.byId("keys").showModal(), t: flip, l: speak };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }
  function arrive(scroll) {
    const found = SP.address();
    const token = /^(\d+):(\d+)$/.exec(found.token || "");
    const [row, at] = token ? [SP.rowOf(Number(token[1])), Number(token[2])] : [-1, 0];
    const known = row >= 0 && at < SP.strip.lengths[row];
    if (known) SP.choose(row, at, { scroll, quiet: true });
    return known;
  }

  const wanted = SP.address();
  for (const name of ["by", "of", "full", "heat", "rule", "tau"]) if (wanted[name]) SP.kept[name] = wanted[name];
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  SP.setTheme(wanted.theme || SP.store.get("samepolicy-theme") || (prefersDark.matches ? "dark" : "light"));
  prefersDark.addEventListener("change", (event) => { if (!SP.store.get("samepolicy-theme")) SP.setTheme(event.matches ? "dark" : "light"); });
  for (const part of [SP.heat, SP.strip, SP.detail, SP.responses, SP.whatif, SP.search]) part.start();
  gauge();
  ladder();
  ledger();
  sides();
  bar();
  SP.on("language", gauge);
  const language = wanted.lang || SP.store.get("samepolicy-language");
  if (language === "zh") SP.setLanguage("zh");
  if (!arrive(true) && SP.responses.list.row.length) SP.choose(SP.responses.list.row[0], SP.responses.list.at[0], { quiet: true });
  if (!arrive(false) && SP.data.rows.count && !SP.responses.list.row.length) SP.choose(0, 0, { quiet: true });
  window.addEventListener("hashchange", () => arrive(true));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  SP.charts.start();
})();
