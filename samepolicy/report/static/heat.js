// The batch as a picture on a canvas: the first cells one by one, or all of it.
SP.heat = (() => {
  const heat = SP.data.heat;
  const whole = SP.unpack(heat.whole);
  const [gridRows, gridColumns] = heat.whole.shape ? heat.whole.shape.split(",").map(Number) : [1, whole.length];
  const first = SP.unpack(heat.first);
  const [firstRows, firstColumns] = heat.first.shape ? heat.first.shape.split(",").map(Number) : [1, first.length];
  const { nothing, masked, bad } = heat.marks;
  const height = Math.asinh(heat.largest / heat.scale) || 1;
  let all = false;
  let order = null;
  let cursor = { x: 0, y: 0 };
  let size = { rows: 0, columns: 0, width: 0, height: 0 };

  const real = (q) => heat.scale * Math.sinh((q / heat.steps) * height);
  const byTable = () => order && heat.tall === 1;
  const rowAt = (y) => (byTable() ? order[y] : all ? y * heat.tall : y);
  function cell(x, y) {
    const row = rowAt(y);
    if (!all && row < firstRows && x < firstColumns && !Number.isNaN(first[row * firstColumns + x])) return first[row * firstColumns + x];
    const q = whole[Math.floor(row / heat.tall) * gridColumns + Math.floor((all ? x * heat.wide : x) / heat.wide)];
    return q === nothing ? null : q === masked ? "masked" : q === bad ? "bad" : real(q);
  }
  function draw() {
    const canvas = SP.byId("heat-map");
    const rows = Math.min(all ? gridRows : firstRowsShown(), byTable() ? order.length : Infinity);
    const columns = all ? gridColumns : Math.min(64, heat.positions);
    const wide = canvas.parentElement.clientWidth - 28;
    const ratio = window.devicePixelRatio || 1;
    const tall = all ? Math.max(Math.min(rows * Math.max(2, Math.min(14, 420 / rows)), 420), 60) : rows * Math.max(9, Math.min(16, wide / columns));
    canvas.style.height = `${tall}px`;
    canvas.width = Math.max(1, Math.round(wide * ratio));
    canvas.height = Math.max(1, Math.round(tall * ratio));
    size = { rows, columns, width: wide, height: tall };
    const pen = canvas.getContext("2d");
    const picture = pen.createImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(picture.data.buffer);
    const pack = ([r, g, b], a = 255) => (a << 24) | (b << 16) | (g << 8) | r;
    const [empty, wrong] = [pack(SP.colour.none()), pack(SP.colour.bad())];
    const known = new Int32Array(256);
    for (let q = -heat.steps; q <= heat.steps; q++) known[q + 128] = pack(SP.colour.cell(real(q)));
    known[nothing + 128] = 0;
    known[masked + 128] = empty;
    known[bad + 128] = wrong;
    const gap = !all && tall / rows > 7 ? Math.round(ratio) : 0;
    // Pixels of one cell, or cells of one pixel: each stretch is looked up once and then filled.
    const cuts = (pixels, cells) => {
      const found = [];
      for (let from = 0; from < pixels; ) {
        const first = Math.floor((from * cells) / pixels);
        let to = from + 1;
        while (to < pixels && Math.floor((to * cells) / pixels) === first) to += 1;
        found.push({ from, to: gap && to < pixels ? Math.max(from + 1, to - gap) : to, first, last: Math.max(first + 1, Math.floor((to * cells) / pixels)) });
        from = to;
      }
      return found;
    };
    const across = cuts(canvas.width, columns);
    for (const y of cuts(canvas.height, rows)) {
      const start = y.from * canvas.width;
      for (const x of across) pixels.fill(known[strongest(y.first, y.last, x.first, x.last) + 128], start + x.from, start + x.to);
      for (let py = y.from + 1; py < y.to; py++) pixels.copyWithin(py * canvas.width, start, start + canvas.width);
    }
    pen.putImageData(picture, 0, 0);
    if (document.activeElement === canvas) frame(pen, ratio);
    SP.colour.legend(SP.byId("legend"));
  }
  const firstRowsShown = () => Math.min(32, heat.rows);
  // Where a pixel covers many cells, it shows the one with the largest size.
  function strongest(from, to, left, right) {
    let found = nothing;
    let most = -1;
    for (let y = from; y < to; y++) {
      const base = Math.floor(rowAt(y) / heat.tall) * gridColumns;
      for (let x = left; x < right; x++) {
        const q = whole[base + (all ? x : Math.floor(x / heat.wide))];
        const rank = q === nothing ? -1 : q === masked ? 0 : q === bad ? 999 : Math.abs(q) + 1;
        if (rank > most) { most = rank; found = q; }
      }
    }
    return found;
  }
  function frame(pen, ratio) {
    const [w, h] = [size.width / size.columns, size.height / size.rows];
    pen.strokeStyle = SP.css("--ink");
    pen.lineWidth = 2 * ratio;
    pen.strokeRect(cursor.x * w * ratio, cursor.y * h * ratio, Math.max(w, 4) * ratio, Math.max(h, 4) * ratio);
  }
  function where(event) {
    const box = SP.byId("heat-map").getBoundingClientRect();
    const inside = (v, most) => Math.max(0, Math.min(most - 1, Math.floor(v)));
    return { x: inside(((event.clientX - box.left) / box.width) * size.columns, size.columns), y: inside(((event.clientY - box.top) / box.height) * size.rows, size.rows) };
  }
  function tellCell({ x, y }) {
    const value = cell(x, y);
    const place = all ? x * heat.wide : x;
    const row = rowAt(y);
    const many = all && (heat.wide > 1 || heat.tall > 1);
    const text = value === null ? SP.said("no token") : value === "masked" ? SP.said("masked") : value === "bad" ? SP.said("not finite") : SP.number(value, 3);
    SP.byId("heat-says").textContent = SP.said(many ? "responses from {row} on, positions from {place} on: largest {text}" : "response {row}, position {place}: {text}", { row: SP.numberOf(row), place, text });
  }
  function open({ x, y }) {
    if (cell(x, y) === null) return;
    SP.choose(rowAt(y), all ? x * heat.wide : x, { scroll: true });
  }
  function at(row, place) {
    const q = whole[Math.floor(row / heat.tall) * gridColumns + Math.floor(place / heat.wide)];
    return q === undefined || q === nothing || q === masked || q === bad ? NaN : real(q);
  }
  function start() {
    const canvas = SP.byId("heat-map");
    const [few, every] = [SP.byId("heat-first"), SP.byId("heat-whole")];
    const label = () => { few.textContent = SP.said("first {rows} × {columns}", { rows: firstRowsShown(), columns: Math.min(64, heat.positions) }); };
    const pick = (wanted) => { all = wanted; few.setAttribute("aria-pressed", !all); every.setAttribute("aria-pressed", all); cursor = { x: 0, y: 0 }; SP.remember("heat", all ? "whole" : ""); draw(); };
    few.addEventListener("click", () => pick(false));
    every.addEventListener("click", () => pick(true));
    SP.byId("heat-order").addEventListener("change", (event) => { order = event.target.value ? SP.responses.order() : null; draw(); });
    SP.byId("heat-order").disabled = heat.tall > 1;
    SP.on("order", () => { if (order) { order = SP.responses.order(); draw(); } });
    canvas.addEventListener("pointermove", (event) => tellCell(where(event)));
    canvas.addEventListener("click", (event) => { cursor = where(event); open(cursor); });
    canvas.addEventListener("focus", draw);
    canvas.addEventListener("blur", draw);
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (by) {
        event.preventDefault();
        cursor = { x: Math.max(0, Math.min(size.columns - 1, cursor.x + by[0])), y: Math.max(0, Math.min(size.rows - 1, cursor.y + by[1])) };
        tellCell(cursor);
        draw();
      } else if (event.key === "Enter") open(cursor);
    });
    const slide = SP.byId("saturation");
    const setFull = (value, quiet) => { SP.colour.setFull(10 ** value); SP.byId("saturation-at").textContent = `±${SP.number(10 ** value, 2)}`; if (!quiet) SP.remember("full", value); };
    slide.addEventListener("input", () => setFull(Number(slide.value)));
    const start = Number(SP.address().full) || Math.log10(SP.data.report.full);
    slide.value = Math.max(-3, Math.min(1.5, start));
    SP.on("colour", draw);
    setFull(Number(slide.value), true);
    if (SP.address().heat === "whole") pick(true);
    label();
    SP.on("language", label);
    SP.on("theme", draw);
    new ResizeObserver(draw).observe(canvas.parentElement);
  }
  return { start, at };
})();
