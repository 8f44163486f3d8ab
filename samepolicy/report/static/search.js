// Search in the tokens that are held: text, "#id", or the number of a response.
SP.search = (() => {
  const MOST = 40;
  let texts = null;

  function build() {
    texts = [];
    for (const [row, stretches] of SP.strip.stretches) {
      for (const s of stretches) {
        const ends = new Uint32Array(s.length);
        const parts = [];
        let length = 0;
        for (let k = 0; k < s.length; k++) {
          const text = SP.strip.columns.id ? SP.strip.pieceOf(SP.strip.columns.id[s.first + k]).text : "";
          parts.push(text);
          length += text.length;
          ends[k] = length;
        }
        texts.push({ row, start: s.start, ends, text: parts.join(""), low: parts.join("").toLowerCase() });
      }
    }
  }
  const tokenAt = (ends, place) => { let [low, high] = [0, ends.length - 1]; while (low < high) { const m = (low + high) >> 1; if (ends[m] <= place) low = m + 1; else high = m; } return low; };

  function hits(query) {
    const found = [];
    const number = /^\d+$/.test(query) ? Number(query) : null;
    const asked = number === null ? -1 : SP.rowOf(number);
    if (asked >= 0) found.push({ row: asked, at: 0, where: SP.said("response {row}", { row: number }), before: "", hit: "", after: "" });
    if (/^#\d+$/.test(query) && SP.strip.columns.id) {
      const id = Number(query.slice(1));
      for (const [row, stretches] of SP.strip.stretches) for (const s of stretches) for (let k = 0; k < s.length && found.length < MOST; k++) if (SP.strip.columns.id[s.first + k] === id) found.push({ row, at: s.start + k, before: "", hit: query, after: "" });
      return found;
    }
    if (!texts) build();
    const low = query.toLowerCase();
    for (const part of texts) {
      for (let place = part.low.indexOf(low); place >= 0 && found.length < MOST; place = part.low.indexOf(low, place + 1)) {
        const clean = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");
        found.push({ row: part.row, at: part.start + tokenAt(part.ends, place), before: clean(part.text.slice(Math.max(0, place - 18), place)), hit: clean(part.text.slice(place, place + query.length)), after: clean(part.text.slice(place + query.length, place + query.length + 30)) });
      }
    }
    return found;
  }
  function show(query) {
    const list = SP.byId("hits");
    const found = query ? hits(query) : [];
    list.hidden = !query;
    const open = (hit) => () => { close(); SP.choose(hit.row, hit.at, { scroll: true }); };
    list.replaceChildren(...(found.length ? found.map((hit) => SP.make("li", {}, SP.make("button", { type: "button", onclick: open(hit) }, SP.make("span", { class: "where" }, hit.where || `${SP.numberOf(hit.row)} : ${hit.at}`), SP.make("span", { class: "what" }, hit.before, SP.make("mark", {}, hit.hit), hit.after)))) : [SP.make("li", { class: "note" }, SP.said("nothing among the tokens that this file holds"))]));
  }
  function close() { SP.byId("hits").hidden = true; SP.byId("search").blur(); }
  function start() {
    const box = SP.byId("search");
    const list = SP.byId("hits");
    let wait = 0;
    box.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => show(box.value.trim() ? box.value : ""), 60); });
    const move = (event, by) => { const all = [...list.querySelectorAll("button")]; const next = all[all.indexOf(document.activeElement) + by]; event.preventDefault(); (next || box).focus(); };
    for (const one of [box, list]) one.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") move(event, 1);
      else if (event.key === "ArrowUp") move(event, -1);
      else if (event.key === "Escape") close();
      else if (event.key === "Enter" && one === box) { clearTimeout(wait); show(box.value); list.querySelector("button")?.click(); }
      event.stopPropagation();
    });
    document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".find")) list.hidden = true; });
  }
  return { start, hits };
})();
