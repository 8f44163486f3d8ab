// The steps as the server knows them: all of them once, then what is new, as it comes.
SP.stream = (() => {
  const held = { epoch: "", revision: 0, steps: [], outside: [], values: {}, names: {}, ranges: {}, marks: { active: [], counts: {}, listed: [] }, state: {} };
  const counts = ["responses", "tokens", "parts", "damaged"];
  for (const name of counts) held[name] = [];
  const base = SP.data.series;
  let series = [...base];
  let source = null;
  let paused = false;
  let asking = 0;
  let told = null;

  const tell = () => {
    if (told) return;
    told = setTimeout(() => { told = null; SP.tell("steps"); }, 120);
  };
  const link = (name, why = "") => SP.tell("link", name, why);

  function place(step) {
    let [low, high] = [0, held.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (held.steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  const columns = () => [held.steps, ...counts.map((name) => held[name]), held.outside, ...series.map((name) => held.values[name])];
  function put(row) {
    const at = place(row[0]);
    const replace = held.steps[at] === row[0] ? 1 : 0;
    columns().forEach((column, i) => column.splice(at, replace, row[i] === null ? NaN : Number(row[i])));
  }

  async function load() {
    const mine = ++asking;
    close();
    try {
      const answer = await fetch(`/data?series=${encodeURIComponent(series.join(","))}`);
      if (mine !== asking) return;
      if (!answer.ok) return later(answer.status === 401 ? "token" : "away", await answer.text());
      const found = await answer.json();
      if (mine !== asking) return;
      for (const name of [...counts, "steps", "outside"]) held[name] = Array.from(SP.unpack(found.rows[name]));
      held.values = Object.fromEntries(series.map((name) => [name, Array.from(SP.unpack(found.values[name]))]));
      for (const name of ["epoch", "revision", "names", "ranges", "marks", "state"]) held[name] = found[name];
      tell();
      listen();
    } catch {
      if (mine === asking) later("away");
    }
  }
  function later(name, why) {
    link(name, why);
    setTimeout(() => { if (!paused && !document.hidden) load(); }, 2000);
  }

  function listen() {
    close();
    if (paused || document.hidden) return;
    const query = new URLSearchParams({ since: `${held.epoch}-${held.revision}`, series: series.join(",") });
    source = new EventSource(`/events?${query}`);
    source.onopen = () => link("open");
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) later("away");
      else link("away");
    };
  }
  function take(found) {
    if (found.again) return load();
    held.revision = found.revision;
    for (const row of found.rows || []) put(row);
    if (found.marks) held.marks = found.marks;
    if (found.state) held.state = found.state;
    tell();
  }
  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!paused) (held.epoch ? listen : load)();
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted && !paused) (held.epoch ? listen : load)(); });

  return {
    held,
    base,
    place,
    load,
    series: () => series,
    ask(names) {
      const wanted = [...new Set([...base, ...names])];
      const more = wanted.some((name) => !series.includes(name));
      series = wanted;
      if (more) load();
      else tell();
    },
    pause(on) {
      paused = on;
      if (on) { close(); link("paused"); } else if (held.epoch) listen();
      else load();
    },
  };
})();
