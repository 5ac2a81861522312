// The timeline: bars that are wide enough are drawn, shorter ones as their share of a pixel's time.
// Wheel with Ctrl, buttons and keys zoom; dragging and keys pan; a search dims what it does not find.
const unpack = async (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const open = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(open).text());
};
const shown = (ns) => {
  const [scale, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${Number((ns / scale).toPrecision(3))} ${unit}`;
};
const made = (tag, attributes, ...inside) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
};
const ROW = 17, HEAD = 18, AXIS = 24, SHORTEST = 2;

const drawTimeline = (box, data) => {
  const count = data.kinds.length;
  let y = AXIS, rank;
  for (const lane of data.lanes) {
    const n = lane.long?.length ?? lane.gap?.length ?? lane.name.length;
    for (const key of ["gap", "long", "kind", "name", "text", "other", "waits"]) lane[key] ??= new Uint8Array(n);
    lane.n = n;
    lane.start = new Float64Array(n);
    lane.end = new Float64Array(n);
    for (let i = 0, at = 0; i < n; i++) {
      lane.start[i] = at += lane.gap[i];
      lane.end[i] = at += lane.long[i];
    }
    if (lane.rank !== rank) { y += HEAD; lane.head = true; rank = lane.rank; }
    lane.y = y;
    y += ROW;
  }
  const height = y + 4;
  const canvas = made("canvas", {tabindex: 0, role: "application", "aria-roledescription": "timeline",
    "aria-describedby": "timeline-keys",
    "aria-label": `Timeline of ${data.lanes.reduce((sum, lane) => sum + lane.n, 0)} operations`});
  const tip = made("div", {class: "tip", hidden: ""});
  const status = made("output", {"aria-live": "polite", class: "note"});
  const field = made("input", {type: "search", placeholder: "Search names", "aria-label": "Search the timeline"});
  const button = (text, label, act) => {
    const one = made("button", {type: "button", "aria-label": label, title: label}, text);
    one.addEventListener("click", act);
    return one;
  };
  const area = made("div", {class: "area"}, canvas, tip);
  const legend = made("p", {class: "legend"});
  const paint = canvas.getContext("2d");
  let from = 0, to = data.length, width = 0, gutter = 0, hits = null, found = [], at = -1, picked = null, colors = [], look, asked = 0;

  const restyle = () => {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    colors = data.kinds.map(([kind]) => value(`--t-${kind}`));
    look = {ink: value("--ink"), soft: value("--soft"), line: value("--line"), paper: value("--paper"), accent: value("--accent")};
    legend.replaceChildren(...data.kinds.map(([kind, words]) => [kind, words, value(`--t-${kind}`)])
      .filter(([, , color], i, all) => all.findIndex((one) => one[2] === color) === i)
      .map(([, , color]) => {
        const dot = made("canvas", {width: 12, height: 12, class: "swatch", "aria-hidden": "true"});
        const dots = dot.getContext("2d");
        dots.fillStyle = color;
        dots.fillRect(0, 0, 12, 12);
        const words = data.kinds.filter(([kind]) => value(`--t-${kind}`) === color).map((one) => one[1]);
        return made("span", {}, dot, [...new Set(words)].join(", "));
      }));
  };
  const first = (lane, ns) => {
    let low = 0, high = lane.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] > ns) high = middle; else low = middle + 1;
    }
    return low;
  };
  const inkOn = (color) => {
    const part = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2] > 0.18 ? "#000000" : "#ffffff";
  };
  const name = (lane, i) => data.names[lane.name[i]];
  const clear = (lane, i) => (hits ? Boolean(hits[lane.name[i]]) : !lane.other[i]);

  const drawLane = (lane, scale) => {
    const span = Math.max(1, Math.ceil(width - gutter)), sums = new Map(), wide = [];
    for (let i = first(lane, from); i < lane.n && lane.start[i] < to; i++) {
      const left = (lane.start[i] - from) * scale, right = (lane.end[i] - from) * scale;
      if (right - left >= SHORTEST) { wide.push(i); continue; }
      const key = 2 * lane.kind[i] + clear(lane, i);
      let sum = sums.get(key);
      if (!sum) sums.set(key, (sum = new Float32Array(span + 2)));
      for (let x = Math.max(0, Math.floor(left)); x <= right && x <= span; x++) {
        sum[x] += Math.min(right, x + 1) - Math.max(left, x);
      }
    }
    const top = lane.y + 1, tall = ROW - 3;
    const base = new Float32Array(span + 2), total = new Float32Array(span + 2);
    for (const sum of sums.values()) for (let x = 0; x <= span; x++) total[x] += sum[x];
    for (const [key, sum] of [...sums].sort((a, b) => a[0] - b[0])) {
      paint.fillStyle = colors[key >> 1];
      paint.globalAlpha = key & 1 ? 1 : 0.3;
      for (let x = 0; x <= span; x++) {
        if (!sum[x]) continue;
        const part = (sum[x] / Math.max(1, total[x])) * tall;
        const seen = hits && key & 1 ? Math.max(part, 3) : part;
        paint.fillRect(gutter + x, top + tall - base[x] - seen, 1, seen);
        base[x] += part;
      }
    }
    for (const i of wide) {
      const left = Math.max(0, (lane.start[i] - from) * scale), right = Math.min(span, (lane.end[i] - from) * scale);
      const color = colors[lane.kind[i]], bright = clear(lane, i);
      const waits = Math.min(right, Math.max(left, (lane.start[i] + lane.waits[i] - from) * scale));
      paint.globalAlpha = bright ? 1 : 0.3;
      paint.fillStyle = color;
      if (waits > left) paint.fillRect(gutter + left, top + tall / 3, waits - left, tall / 3);
      paint.fillRect(gutter + waits, top, Math.max(right - waits - (right - waits > 4 ? 0.7 : 0), 0.5), tall);
      if (right - waits > 34) {
        paint.globalAlpha = 1;
        paint.fillStyle = bright ? inkOn(color) : look.ink;
        const room = Math.floor((right - waits - 6) / 5.7), whole = name(lane, i);
        const text = whole.length <= room ? whole : `${whole.slice(0, room - 1)}…`;
        paint.fillText(text, gutter + waits + 3, top + tall / 2 + 0.5);
      }
      if (picked && picked[0] === lane && picked[1] === i) {
        paint.globalAlpha = 1;
        paint.strokeStyle = look.ink;
        paint.lineWidth = 2;
        paint.strokeRect(gutter + left, top - 1, Math.max(right - left, 2), tall + 2);
      }
    }
    paint.globalAlpha = 1;
    if (picked && picked[0] === lane && !wide.includes(picked[1])) {
      const left = (lane.start[picked[1]] - from) * scale;
      if (left >= 0 && left <= span) {
        paint.fillStyle = look.ink;
        paint.fillRect(gutter + left - 1, top - 2, 3, tall + 4);
      }
    }
  };
  const draw = () => {
    asked = 0;
    const ratio = devicePixelRatio || 1;
    width = area.clientWidth;
    if (!width) return;
    gutter = width < 600 ? 72 : 116;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    paint.textBaseline = "middle";
    const scale = (width - gutter) / (to - from), rough = (to - from) / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    paint.font = "11px system-ui, sans-serif";
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
      const x = gutter + (tick - from) * scale;
      paint.fillStyle = look.line;
      paint.fillRect(x, AXIS - 4, 1, height);
      paint.fillStyle = look.soft;
      const [unit, words] = data.length >= 2e9 ? [1e9, "s"] : data.length >= 2e6 ? [1e6, "ms"] : [1e3, "µs"];
      paint.fillText(`${Number((tick / unit).toFixed(6)).toLocaleString("en")} ${words}`, Math.min(x + 2, width - 60), 9);
    }
    for (const lane of data.lanes) {
      if (lane.head) {
        paint.font = "600 12px system-ui, sans-serif";
        paint.fillStyle = look.ink;
        paint.fillText(lane.rank === null ? "no rank" : `rank ${lane.rank}`, 0, lane.y - 7);
        paint.fillStyle = look.line;
        paint.fillRect(0, lane.y - HEAD + 1, width, 1);
      }
      paint.font = "11px system-ui, sans-serif";
      paint.fillStyle = look.soft;
      paint.fillText(lane.lane, 0, lane.y + ROW / 2, gutter - 6);
      paint.font = "10px system-ui, sans-serif";
      paint.save();
      paint.beginPath();
      paint.rect(gutter, 0, width - gutter, height);
      paint.clip();
      drawLane(lane, scale);
      paint.restore();
    }
  };
  const redraw = () => { asked ||= requestAnimationFrame(draw); };
  const view = (left, right) => {
    const least = Math.min(100, data.length), span = Math.min(Math.max(right - left, least), data.length);
    from = Math.min(Math.max((left + right - span) / 2, 0), data.length - span);
    to = from + span;
    redraw();
  };
  const zoom = (by, middle = (from + to) / 2) => view(middle - (middle - from) / by, middle + (to - middle) / by);
  const pan = (share) => { const far = share * (to - from); view(from + far, to + far); };
  const say = (lane, i) => [
    `${name(lane, i)}`, `${shown(lane.end[i] - lane.start[i])}, ${data.kinds[lane.kind[i]][1]}, from ${shown(Math.max(0, lane.start[i]))} on`,
    ...(lane.waits[i] ? [`waits ${shown(lane.waits[i])} for other ranks`] : []),
    ...(lane.other[i] ? ["belongs to another step"] : []),
    ...data.texts[lane.text[i]].split("\n").filter(Boolean),
    `${lane.rank === null ? "no rank" : `rank ${lane.rank}`}, ${lane.lane}`,
  ];
  const pick = (lane, i, close) => {
    picked = [lane, i];
    const long = lane.end[i] - lane.start[i];
    if (close) view(lane.start[i] - 2 * long, lane.end[i] + 2 * long);
    else if (lane.start[i] < from || lane.end[i] > to) view(lane.start[i] + long / 2 - (to - from) / 2, lane.start[i] + long / 2 + (to - from) / 2);
    status.textContent = say(lane, i).join("; ");
    redraw();
  };
  const search = (text, whole = false) => {
    const wanted = text.trim().toLowerCase();
    found = [];
    at = -1;
    hits = null;
    picked = null;
    status.textContent = "";
    if (wanted) {
      hits = data.names.map((one) => (whole ? one.toLowerCase() === wanted : one.toLowerCase().includes(wanted)));
      let sum = 0;
      for (const lane of data.lanes) for (let i = 0; i < lane.n; i++) {
        if (hits[lane.name[i]]) { found.push([lane, i]); sum += lane.end[i] - lane.start[i]; }
      }
      status.textContent = found.length ? `${found.length.toLocaleString("en")} found, ${shown(sum)} together; Enter shows the next one` : "nothing found";
    }
    redraw();
    return found.length;
  };
  const next = (turn) => {
    if (!found.length) return;
    at = (at + turn + found.length) % found.length;
    pick(...found[at], true);
    status.textContent = `${at + 1} of ${found.length}: ${status.textContent}`;
  };
  const along = (turn) => {
    if (hits) { next(turn); return; }
    const [lane, i] = picked ?? [data.lanes[0], turn > 0 ? -1 : data.lanes[0].n];
    if (i + turn >= 0 && i + turn < lane.n) pick(lane, i + turn);
  };
  const across = (turn) => {
    const now = picked ? data.lanes.indexOf(picked[0]) : -1, lane = data.lanes[now + turn];
    const when = picked ? picked[0].start[picked[1]] : from;
    if (lane) pick(lane, Math.min(first(lane, when), lane.n - 1));
  };
  const KEYS = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5),
    Home: () => view(0, data.length), 0: () => view(0, data.length), n: () => along(1), p: () => along(-1),
    ArrowUp: () => across(-1), ArrowDown: () => across(1), "/": () => field.focus(),
    Escape: () => { field.value = ""; search(""); },
    Enter: () => { if (picked) pick(...picked, true); },
  };
  canvas.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { field.value = ""; search(""); canvas.focus(); }
  });
  const when = (x) => from + ((x - gutter) / (width - gutter)) * (to - from);
  const under = (event) => {
    const where = canvas.getBoundingClientRect(), x = event.clientX - where.left, y = event.clientY - where.top;
    const lane = data.lanes.find((one) => y >= one.y && y < one.y + ROW);
    if (!lane || x < gutter) return null;
    const ns = when(x), near = ((to - from) / (width - gutter)) * 2, i = first(lane, ns - near);
    return i < lane.n && lane.start[i] <= ns + near ? [lane, i, x, y] : null;
  };
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event.clientX); moved = 0; });
  addEventListener("pointerup", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before !== undefined) {
      const far = ((before - event.clientX) / (width - gutter)) * (to - from);
      moved += Math.abs(before - event.clientX);
      if (fingers.size === 1) view(from + far, to + far);
      else {
        const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
        const now = Math.max(20, Math.abs(event.clientX - other)), was = Math.max(20, Math.abs(before - other));
        zoom(now / was, when((event.clientX + other) / 2 - canvas.getBoundingClientRect().left));
      }
      fingers.set(event.pointerId, event.clientX);
    }
    const hit = under(event);
    tip.hidden = !hit || fingers.size > 0;
    if (tip.hidden) return;
    const lines = say(hit[0], hit[1]);
    tip.replaceChildren(made("strong", {}, lines[0]), ...lines.slice(1).map((line) => made("span", {}, line)));
    tip.style.left = `${Math.max(0, Math.min(hit[2] + 12, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${hit[3] + 18}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => { const hit = under(event); if (hit && moved < 4) pick(hit[0], hit[1]); });
  canvas.addEventListener("dblclick", (event) => { const hit = under(event); if (hit) pick(hit[0], hit[1], true); });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const where = canvas.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), when(event.clientX - where.left));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / width);
    }
  }, {passive: false});
  const tools = made("div", {class: "tools"}, field, button("↑", "Previous hit or operation", () => along(-1)), button("↓", "Next hit or operation", () => along(1)),
    button("+", "Zoom in", () => zoom(1.5)), button("−", "Zoom out", () => zoom(1 / 1.5)),
    button("←", "Earlier", () => pan(-0.3)), button("→", "Later", () => pan(0.3)), button("All", "Show the whole step", KEYS.Home));
  const keys = made("p", {class: "note", id: "timeline-keys"}, "Drag to pan, Ctrl and wheel or two fingers to zoom, double click to show one operation. Keys: + and − zoom, arrows pan and change the lane, N and P go from one operation to the next, / searches, 0 shows all. What is shorter than two pixels is drawn as its share of the time.");
  box.append(tools, area, status, legend, keys);
  document.documentElement.classList.add("live");
  restyle();
  draw();
  new ResizeObserver(redraw).observe(area);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { restyle(); draw(); });
  return {
    has: (text) => data.names.some((one) => one.toLowerCase() === text.toLowerCase()),
    show: (text, of) => {
      field.value = text;
      search(text, true);
      const mine = found.filter(([lane]) => of === undefined || lane.rank === Number(of));
      const own = mine.filter(([lane, i]) => !lane.other[i]), some = own.length ? own : mine.length ? mine : found;
      if (!some.length) return;
      const long = ([lane, i]) => lane.end[i] - lane.start[i];
      const most = some.reduce((a, b) => (long(b) > long(a) ? b : a));
      at = found.indexOf(most) - 1;
      next(1);
      box.scrollIntoView({block: "start"});
      canvas.focus({preventScroll: true});
    },
    view: () => [from, to],
    timed: () => { const start = performance.now(); draw(); return performance.now() - start; },
  };
};

// What names something of the timeline leads there: rows by a button, findings by their link.
const connect = (live) => {
  for (const link of document.querySelectorAll("a[data-find]")) {
    if (!live.has(link.dataset.find)) { link.remove(); continue; }
    link.addEventListener("click", (event) => { event.preventDefault(); live.show(link.dataset.find, link.dataset.rank); });
  }
  for (const row of document.querySelectorAll("tr[data-find]")) {
    if (!live.has(row.dataset.find)) continue;
    const head = row.querySelector("th"), button = made("button", {type: "button", class: "place", title: "Show on the timeline"});
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => live.show(row.dataset.find, row.dataset.rank));
  }
};
const held = document.getElementById("timeline-data");
if (held && window.DecompressionStream) {
  unpack(held.textContent).then((data) => { window.timeline = drawTimeline(document.getElementById("timeline-live"), data); connect(window.timeline); });
}
