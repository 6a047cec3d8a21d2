// What the pages do beyond HTML: local times, sorting and filtering of tables, curves, copying, light and dark, and
// whether the page is live. Nothing is written as HTML here: every text goes in as text.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  // Times: the server writes UTC. One form everywhere: 24 hours, the day before them where it is not today.
  const two = (number) => String(number).padStart(2, "0");
  const clock = (at) => [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  function moment(at) {
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    return at.toDateString() === new Date().toDateString() ? clock(at) : `${day} ${clock(at)}`;
  }
  function localTimes(within) {
    for (const element of all("time[datetime]", within)) {
      const at = new Date(element.getAttribute("datetime"));
      if (!Number.isNaN(at.getTime()) && element.textContent !== moment(at)) element.textContent = moment(at);
    }
  }

  // A cell says what the heading of its column says, where it says nothing itself.
  function explainCells(table) {
    const headings = table.tHead?.rows[0]?.cells || [];
    for (const row of table.tBodies[0]?.rows || [])
      if (row.cells.length === headings.length)
        Array.from(row.cells).forEach((cell, place) => {
          if (headings[place].title && !cell.title) cell.title = headings[place].title;
        });
  }

  // Tables: sorted by a click on a heading, filtered by words; both stay when the rows are sent again.
  const chosen = new WeakMap();
  function valueOf(row, place) {
    const cell = row.cells[place];
    if (!cell) return "";
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text.replace(/,/g, ""));
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  }
  function arrange(table) {
    const { place, descending, words } = chosen.get(table) || {};
    const body = table.tBodies[0];
    if (!body) return;
    const rows = Array.from(body.rows);
    if (place !== undefined) {
      const sorted = rows.slice().sort((one, other) => {
        const [a, b] = [valueOf(one, place), valueOf(other, place)];
        const order = typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
        return descending ? -order : order;
      });
      if (sorted.some((row, index) => row !== rows[index])) {
        // Around the row that has the focus: a row that is moved loses it.
        const held = sorted.findIndex((row) => row.contains(document.activeElement));
        if (held >= 0) sorted[held].before(...sorted.slice(0, held));
        body.append(...sorted.slice(held + 1));
      }
    }
    const wanted = (words || "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
  }
  function makeSortable(table) {
    chosen.set(table, {});
    Array.from(table.tHead.rows[0].cells).forEach((heading, place) => {
      const name = heading.textContent.trim();
      if ("fixed" in heading.dataset) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = name;
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const state = chosen.get(table);
        state.descending = state.place === place ? !state.descending : heading.classList.contains("right");
        state.place = place;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
        arrange(table);
      });
    });
    if (table.dataset.filter && table.tBodies[0].rows.length > 5) {
      const field = document.createElement("input");
      field.type = "search";
      field.className = "filter";
      field.placeholder = table.dataset.filter;
      field.setAttribute("aria-label", table.dataset.filter);
      field.addEventListener("input", () => {
        chosen.get(table).words = field.value;
        arrange(table);
      });
      const holder = table.closest(".scroll") || table;
      holder.before(field);
    }
  }

  // Curves.
  const drawn = new Map();
  const ink = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const strokes = () => [0, 1, 2, 3, 4, 5].map((place) => ink(`--c${place}`));
  const dashes = [[], [6, 4], [2, 3], [8, 3, 2, 3], [4, 4], [1, 3]];
  function clockTimes(_, moments) {
    const length = moments.at(-1) - moments[0] < 600 ? 8 : 5;
    return moments.map((at) => clock(new Date(at * 1000)).slice(0, length));
  }
  // Moments as upright dashed lines; the page has them in words too.
  function mark(element, plot) {
    const marks = JSON.parse(element.dataset.marks || "[]");
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ink("--warn");
    ctx.setLineDash([4, 4]);
    for (const [at] of marks) {
      if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
      const left = Math.round(plot.valToPos(at, "x", true));
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
  const written = (value) => (value == null ? "–" : Number(value.toPrecision(5)).toString());
  // What the legend says: of the moment that is pointed at, and the newest that is known while none is.
  function inLegend(write) {
    return (plot, value, series, index) => {
      if (index != null) return write(value);
      const [across, ...lines] = plot.data;
      const newest = (line) => line.findLastIndex((one) => one != null);
      const at = series ? newest(plot.data[series]) : Math.max(...lines.map(newest));
      return at < 0 ? "–" : write((series ? plot.data[series] : across)[at]);
    };
  }
  // The same numbers as a table: at most a hundred rows, evenly chosen, the newest first.
  function tabulate(element, x, lines, isTime) {
    const place = element.id && document.querySelector(`[data-table-of="${element.id}"]`);
    if (!place) return;
    const names = Object.keys(lines);
    const every = Math.max(1, Math.ceil(x.length / 100));
    const table = document.createElement("table");
    const add = (part, kind, cells) => {
      const row = part.insertRow();
      for (const cell of cells) {
        const made = row.appendChild(document.createElement(kind));
        made.textContent = cell;
        made.className = "right";
      }
    };
    add(table.createTHead(), "th", [element.dataset.x || "x", ...names]);
    for (const [at, heading] of [...table.tHead.rows[0].cells].entries()) heading.title = (at ? element.dataset.says : element.dataset.xSays) || "";
    const body = table.createTBody();
    for (let at = x.length - 1; at >= 0; at -= every) {
      const when = isTime && new Date(x[at] * 1000);
      add(body, "td", [when ? moment(when) : x[at], ...names.map((name) => written(lines[name][at]))]);
      if (when) body.rows[body.rows.length - 1].cells[0].title = when.toISOString().replace("T", " ").replace(".000Z", " UTC");
    }
    place.replaceChildren(table);
  }
  // An axis' numbers, short and all of their magnitude: 250, 0.05, 2e11, 5e-11.
  function shortly(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    const text = Number(value.toPrecision(8));
    return size >= 1e6 || (size && size < 1e-4) ? text.toExponential().replace("e+", "e") : text.toLocaleString("en", { maximumFractionDigits: 12 });
  }
  const steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  function draw(element, x, lines, isTime) {
    tabulate(element, x, lines, isTime);
    drawn.get(element)?.destroy();
    element.replaceChildren();
    drawn.delete(element);
    const names = Object.keys(lines);
    if (!x.length || !names.length) {
      element.classList.add("nothing");
      element.textContent = "Nothing has been measured yet.";
      return;
    }
    element.classList.remove("nothing");
    const colours = strokes();
    const size = parseFloat(getComputedStyle(root).fontSize);
    const axis = { font: `${Math.round(size * 0.8)}px ${getComputedStyle(document.body).fontFamily}`, stroke: ink("--dim"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") } };
    const few = x.length < 60;
    const plot = new uPlot(
      {
        width: Math.max(element.clientWidth, 240),
        height: Math.min(320, Math.max(200, element.clientWidth * 0.28)),
        scales: { x: { time: isTime } },
        padding: [null, 32, null, null],
        hooks: { draw: [(drawn) => mark(element, drawn)] },
        axes: [
          { ...axis, ...(isTime ? { space: Math.round(size * 4.8), values: clockTimes } : { values: (_, ticks) => ticks.map(shortly) }), incrs: !isTime && x.every(Number.isInteger) ? steps : undefined },
          { ...axis, label: element.dataset.y, labelFont: axis.font, labelSize: Math.round(size * 1.4), values: (_, ticks) => ticks.map(shortly), size: (_, ticks) => Math.round(size * Math.max(4.2, 1.6 + 0.5 * Math.max(...(ticks || [""]).map((text) => text.length)))) },
        ],
        series: [
          { label: element.dataset.x || "x", value: inLegend((value) => (isTime ? moment(new Date(value * 1000)) : written(value))) },
          ...names.map((name, place) => ({
            label: name,
            stroke: colours[place % 6],
            width: 2,
            dash: dashes[place % 6],
            spanGaps: isTime,
            points: { show: few, size: 6, fill: colours[place % 6] },
            value: inLegend((value) => [written(value), element.dataset.unit].filter(Boolean).join(" ")),
          })),
        ],
      },
      [x, ...names.map((name) => lines[name])],
      element,
    );
    drawn.set(element, plot);
  }
  function drawPlot(element) {
    const told = JSON.parse(element.dataset.plot || "{}");
    const select = document.querySelector(`select[data-plot-of="${element.id}"]`);
    let lines = told.lines || {};
    if (select) lines = lines[select.value] || {};
    else lines = Object.fromEntries(Object.entries(lines).map(([name, parts]) => [name, parts.value]));
    draw(element, told.x || [], lines, false);
  }
  async function drawSeries(element, seconds = 86_400) {
    const query = `name=${encodeURIComponent(element.dataset.series)}&seconds=${seconds}&${element.dataset.query || ""}`.replace("&model=", "");
    const answer = await fetch(`/v1/series?${query}`);
    if (!answer.ok) return draw(element, [], {}, true);
    const told = await answer.json();
    const lines = {};
    const times = Number(element.dataset.times || 1);
    for (const one of told.series) {
      if (element.dataset.query?.includes("service=serving") && !one.model) continue;
      lines[[one.model, one.version || "", one.instance_id].filter(Boolean).join(" ")] = one.points.map((value) => (value == null ? null : value * times));
    }
    const length = told.series[0]?.points.length || 0;
    let first = 0;
    while (first < length && Object.values(lines).every((points) => points[first] == null)) first += 1;
    if (seconds > 3600 && (length - first) * told.step_seconds < 3600) return drawSeries(element, 3600);
    first = Math.max(0, Math.min(first - 1, length - 12));
    const x = Array.from({ length }, (_, place) => told.from + place * told.step_seconds).slice(first);
    const newest = (name) => lines[name].findLastIndex((value) => value != null);
    const known = Object.keys(lines).filter((name) => newest(name) >= 0);
    const names = known.slice().sort((one, other) => newest(other) - newest(one)).slice(0, 6).sort();
    const note = document.querySelector(`[data-left-out-of="${element.id}"]`);
    if (note) note.textContent = names.length < known.length ? `${names.length} of ${known.length} are drawn, those that answered last; the table of versions below has all. ` : "";
    draw(element, x, Object.fromEntries(names.map((name) => [name, lines[name].slice(first)])), true);
  }
  function drawAll() {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    if (typeof uPlot === "undefined") return;
    for (const element of all("[data-plot]")) drawPlot(element);
    for (const element of all("[data-series]")) drawSeries(element);
  }

  // What a live change leaves alone: what the reader has opened, filtered away or chosen, and where the focus is.
  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
  let held = null;
  function hold(target) {
    const focused = document.activeElement;
    held = null;
    if (!target.contains(focused) || focused === target) return;
    const owner = focused.closest("[id]");
    const named = owner && owner !== target && target.contains(owner) ? owner : target;
    held = { focused, named, id: named.id, place: all(FOCUSABLE, named).indexOf(focused) };
  }
  // To the same link of the same row; where the row is gone, to the region that it was in.
  function restoreFocus(target) {
    if (!held) return;
    const { focused, named, id, place } = held;
    held = null;
    const owner = named === target ? target : document.getElementById(id);
    const same = owner?.contains(focused) ? focused : owner && all(FOCUSABLE, owner)[place];
    if (same && same === document.activeElement) return;
    same?.focus({ preventScroll: true });
    if (document.activeElement === document.body) target.closest("[tabindex]")?.focus({ preventScroll: true });
  }
  if (typeof Idiomorph !== "undefined")
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
      !(name === "open" && element.localName === "details") &&
      !(name === "hidden" && element.localName === "tr") &&
      !(name === "checked" && element.localName === "input");

  // What is not live of a page, such as a table where there was nothing, changes by loading it again; not while somebody
  // writes in it.
  function renew(element, shape) {
    const isWriting = all("input, textarea").some((field) => field.value !== field.defaultValue);
    if (shape !== element.dataset.shape && !isWriting) location.reload();
  }

  // Whether the page is live.
  function say(text, kind) {
    const told = document.getElementById("live");
    if (told.textContent !== text) told.textContent = text;
    told.className = kind;
  }

  document.addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    all("table").forEach(explainCells);
    all("table[data-sort]").forEach(makeSortable);
    drawAll();
    for (const select of all("select[data-plot-of]"))
      select.addEventListener("change", () => drawPlot(document.getElementById(select.dataset.plotOf)));
    // The call for a shell follows what is written into the form.
    const request = document.querySelector("textarea[data-call]");
    request?.addEventListener("input", () => {
      const call = document.getElementById(request.dataset.call);
      const text = request.value.replace(/\s*\n\s*/g, " ").trim().replaceAll("'", "\\u0027");
      if (call) call.textContent = call.textContent.replace(/-d '[^']*'$/, () => `-d '${text}'`);
    });
    for (const button of all("[data-copy]"))
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        button.textContent = "Copied";
      });
    document.addEventListener("keydown", (event) => {
      const cancel = document.getElementById("cancel");
      if (event.key === "Escape" && cancel && !event.isComposing) cancel.click();
    });
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("headrace-theme", root.dataset.theme);
      drawAll();
    });
    if (all("[data-series]").length) setInterval(() => all("[data-series]").forEach((element) => drawSeries(element)), 10_000);
  });
  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(drawAll, 150);
  });
  document.addEventListener("htmx:sseOpen", () => say("live", "on"));
  document.addEventListener("htmx:sseError", () => say("reconnecting", "off"));
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (event.target.id !== "shape") return hold(event.target);
    event.preventDefault();
    renew(event.target, event.detail.data);
  });
  document.addEventListener("htmx:sseMessage", (event) => restoreFocus(event.target));
  document.addEventListener("htmx:afterSwap", (event) => {
    localTimes(event.target);
    const table = event.target.closest("table");
    for (const one of table ? [table] : all("table", event.target)) explainCells(one);
    if (table?.matches("[data-sort]")) arrange(table);
    for (const element of all("[data-plot]", event.target)) drawPlot(element);
  });
})();
