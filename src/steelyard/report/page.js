// Draws the figures from the JSON in #data as inline SVG. No library, no network.
// <html data-ready> says that all are drawn; <html data-error> carries the message if one could not be.
"use strict";
(() => {
  const page = document.documentElement;
  addEventListener("error", event => { page.dataset.error = event.message; });
  const data = JSON.parse(document.getElementById("data").textContent);

  // ---------------------------------------------------------------- numbers as people read them

  const round = (value, digits) => Number(value.toPrecision(digits));
  const trimmed = value => round(value, 3).toLocaleString("en", { maximumFractionDigits: 12 });
  function amount(value) {
    const size = Math.abs(value);
    if (size >= 1000 || size === 0) return Math.round(value).toLocaleString("en");
    return size < 0.01 ? trimmed(value) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  }
  function brief(value) { // for an axis: 1.5k, 20M
    const [scale, letter] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([s]) => Math.abs(value) >= s) || [1, ""];
    return trimmed(value / scale) + letter;
  }
  const percent = value => value > 0 && value < 0.001 ? "<0.1 %" : `${Math.round(value * 1000) / 10} %`;
  function unit(size) {
    if (size >= 7200) return [3600, "h"];
    if (size >= 120) return [60, "min"];
    return [[1, "s"], [1e-3, "ms"]].find(([scale]) => size >= scale) || [1e-6, "µs"];
  }
  function seconds(value) {
    if (value === 0) return "0 s";
    const [scale, name] = unit(round(Math.abs(value), 3));
    return `${amount(value / scale)} ${name}`;
  }
  function duration(tick) { // a tick in its own unit
    const [scale, name] = unit(round(tick, 3));
    return tick === 0 ? "0" : `${trimmed(tick / scale)} ${name}`;
  }
  function clock(span) { // ticks of one axis share a unit, minutes only where they are whole
    const [scale, name] = span >= 18000 ? [3600, "h"] : span >= 600 ? [60, "min"] : unit(Math.min(span, 100));
    return tick => tick === 0 ? "0" : `${trimmed(tick / scale)} ${name}`;
  }

  // ---------------------------------------------------------------- scales and ticks

  const STEPS = [1, 2, 5, 10];
  const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  function niceStep(span, most) {
    const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
    return power * STEPS.find(step => step * power >= rough * 0.999999);
  }
  function multiples(low, high, step) {
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
    return ticks;
  }
  const linearTicks = (low, high, most) => multiples(low, high, niceStep(high - low, most));
  function clockTicks(low, high, most) {
    const span = high - low, rough = span / most;
    const step = rough < 0.5 || rough > 86400 ? niceStep(span, most) : CLOCK.find(s => s >= rough);
    return multiples(low, high, step);
  }
  function logTicks(low, high, most) {
    const decades = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) decades.push(10 ** p);
    const within = ticks => ticks.filter(t => t >= low * 0.999 && t <= high * 1.001);
    const [fine, middling, whole] = [[1, 2, 5], [1, 3], [1]].map(steps => within(decades.flatMap(d => steps.map(s => s * d))));
    if (fine.length < 3) return linearTicks(low, high, most).filter(t => t > 0);
    const every = Math.ceil(whole.length / most);
    return [fine, middling].find(ticks => ticks.length <= most) || whole.filter((_, i) => i % every === 0);
  }
  function scale(axis, from, to) {
    const at = axis.log ? Math.log : v => v;
    const low = at(axis.low), slope = (to - from) / (at(axis.high) - low);
    const place = v => from + (at(axis.log ? Math.max(v, axis.low) : v) - low) * slope;
    place.inverse = pixel => axis.log ? Math.exp(low + (pixel - from) / slope) : low + (pixel - from) / slope;
    return place;
  }

  // ---------------------------------------------------------------- drawing

  const MARGIN = { left: 44, right: 14, top: 8, bottom: 24 };
  const px = value => Math.round(value * 10) / 10;
  function svg(name, attributes, parent, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }
  const trace = (xs, ys) => "M" + xs.map((x, i) => `${px(x)} ${px(ys[i])}`).join("L");
  // Each layer: how its points, already in pixels, become a path.
  const SHAPES = {
    line: ({ xs, ys }) => trace(xs, ys),
    area: ({ xs, ys, floor }) => `${trace(xs, ys)}V${px(floor)}H${px(xs[0])}Z`,
    dots: ({ xs, ys }) => xs.map((x, i) => `M${px(x)} ${px(ys[i])}h0`).join(""),
    bars: ({ xs, ends, ys, floor }) => xs.map((x, i) =>
      `M${px(x)} ${px(floor)}V${px(ys[i])}h${px(Math.max(ends[i] - x - 1, 1.5))}V${px(floor)}Z`).join(""),
    rules: ({ xs, ys, floor }) => xs.map((x, i) => `M${px(x)} ${px(floor)}V${px(ys[i])}`).join(""),
  };

  const together = {}; // figures whose cursors move as one
  class Figure {
    constructor(name, chart) {
      this.host = document.querySelector(`#fig-${name} .plot`);
      this.readout = document.querySelector(`#fig-${name} .readout`);
      this.title = document.querySelector(`#fig-${name} figcaption`).textContent;
      this.chart = chart;
      this.group = [this];
      this.draw();
      new ResizeObserver(() => {
        if (Math.abs(this.host.clientWidth - this.width) > 1) this.draw();
      }).observe(this.host);
    }

    join(name) {
      this.group = together[name] ||= [];
      this.group.push(this);
    }

    draw() {
      this.width = this.host.clientWidth;
      const width = Math.max(this.width, 160), height = 200;
      const chart = this.spec = this.chart(width);
      this.host.replaceChildren();
      if (!chart) {
        const empty = document.createElement("div");
        empty.className = "empty";
        empty.textContent = "Nothing to show: no request of this run has it.";
        this.host.append(empty);
        return;
      }
      this.x = scale(chart.x, MARGIN.left, width - MARGIN.right);
      this.y = scale(chart.y, height - MARGIN.bottom, MARGIN.top);
      this.canvas = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 }, this.host);
      this.axes(width, height);
      for (const layer of chart.layers) this.layer(layer);
      for (const limit of chart.limits || []) this.limit(limit, width, height);
      this.cursor = svg("g", {}, this.canvas);
      this.listen(height);
      this.rest();
    }

    axes(width, height) {
      const { x, y } = this.spec, bottom = height - MARGIN.bottom;
      const yTicks = y.ticks || (y.log ? logTicks : linearTicks)(y.low, y.high, 5);
      const grid = yTicks.map(t => `M${MARGIN.left} ${px(this.y(t))}H${width - MARGIN.right}`).join("");
      svg("path", { class: "grid", d: grid || `M${MARGIN.left} ${bottom}h0` }, this.canvas);
      svg("path", { class: "axis", d: `M${MARGIN.left} ${bottom}H${width - MARGIN.right}` }, this.canvas);
      for (const t of yTicks) {
        svg("text", { x: MARGIN.left - 7, y: px(this.y(t)) + 4, "text-anchor": "end" }, this.canvas, y.format(t));
      }
      const room = Math.max(2, Math.floor((width - MARGIN.left - MARGIN.right) / 54));
      const edge = width - MARGIN.right - 12;
      let last = -Infinity;
      for (const t of (x.log ? logTicks : x.ticks || linearTicks)(x.low, x.high, room)) {
        const place = px(this.x(t));
        if (place - last < (place > edge ? 64 : 44)) continue;
        last = place;
        svg("text", { x: place, y: height - 6, "text-anchor": place > edge ? "end" : "middle" }, this.canvas, x.format(t));
      }
    }

    layer(layer) {
      const pixels = { xs: layer.xs.map(this.x), ys: layer.ys.map(this.y), floor: this.y(this.spec.y.low) };
      if (layer.ends) pixels.ends = layer.ends.map(this.x);
      svg("path", { class: `${layer.kind} ${layer.style || ""}`, d: SHAPES[layer.kind](pixels) }, this.canvas);
    }

    limit({ name, at }, width, height) {
      const beyond = at > this.spec.x.high, place = px(beyond ? width - MARGIN.right : this.x(at));
      if (!beyond) svg("path", { class: "limit", d: `M${place} ${MARGIN.top}V${height - MARGIN.bottom}` }, this.canvas);
      const side = beyond || place > width * 0.6 ? "end" : "start";
      const shift = side === "end" ? -5 : 5;
      const label = beyond ? `${name} ${seconds(at)} →` : `${name} ${seconds(at)}`;
      svg("text", { class: "limit-name", x: place + shift, y: height - MARGIN.bottom - 8, "text-anchor": side }, this.canvas, label);
    }

    listen(height) {
      const all = index => this.group.forEach(figure => figure.point(index, height));
      const leave = () => this.group.forEach(figure => figure.leave());
      const { stops } = this.spec;
      this.canvas.addEventListener("pointermove", event => {
        const box = this.canvas.getBoundingClientRect();
        const at = this.x.inverse((event.clientX - box.left) * this.canvas.viewBox.baseVal.width / box.width);
        all(nearest(stops, at));
      });
      this.canvas.addEventListener("pointerleave", leave);
      this.canvas.addEventListener("blur", leave);
      this.canvas.addEventListener("keydown", event => {
        const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
        if (event.key === "Escape") leave();
        if (move === undefined) return;
        event.preventDefault();
        const from = this.index ?? Math.floor(stops.length / 2);
        all(Math.min(stops.length - 1, Math.max(0, from + move * (event.shiftKey ? 10 : 1))));
      });
    }

    point(index, height) {
      if (!this.spec || index >= this.spec.stops.length) return;
      this.index = index;
      const place = px(this.x(this.spec.stops[index]));
      this.cursor.replaceChildren();
      svg("path", { class: "cursor", d: `M${place} ${MARGIN.top}V${height - MARGIN.bottom}` }, this.cursor);
      for (const { value, style } of this.spec.spots(index)) {
        svg("circle", { class: `spot ${style}`, cx: place, cy: px(this.y(value)), r: 3.6 }, this.cursor);
      }
      this.say(this.spec.at(index));
    }

    leave() {
      if (!this.spec) return;
      this.index = undefined;
      this.cursor.replaceChildren();
      this.rest();
    }

    rest() {
      this.say(this.spec.rest);
      this.canvas.setAttribute("aria-label", `${this.title}: ${this.readout.textContent}`);
    }

    say(items) { // each: [colour key or 0, label, value]
      this.readout.replaceChildren(...items.map(([key, label, value]) => {
        const item = document.createElement("span"), strong = document.createElement("b");
        item.className = `key k${key}`;
        strong.textContent = value;
        item.append(label ? `${label} ` : "", strong, " ");
        return item;
      }));
    }
  }

  function nearest(sorted, value) {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle; else high = middle;
    }
    return value - sorted[low] <= sorted[high] - value ? low : high;
  }
  const most = values => values.reduce((a, b) => b > a ? b : a, 0);
  const mean = values => values.reduce((a, b) => a + b, 0) / values.length;

  // ---------------------------------------------------------------- the figures

  const logSwitch = document.getElementById("log-x");

  function cdf(metric) {
    const values = data.cdfs[metric], shares = data.quantiles, marks = data.marks[metric];
    if (!values.length) return () => null;
    return () => {
      const log = logSwitch.checked, high = values.at(-1) || 1e-6;
      const low = Math.max(values.find(v => v > 0) || high / 2, high / 1e6);
      const x = log ? { log, low: low === high ? low / 2 : low / 1.1, high: low === high ? high * 2 : high * 1.1 }
                    : { low: 0, high: high * 1.04 };
      const known = marks.filter(([, value]) => value !== null);
      return {
        x: { ...x, ticks: linearTicks, format: duration },
        y: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], format: percent },
        layers: [
          { kind: "area", style: "c1", xs: values, ys: shares },
          { kind: "line", style: "c1", xs: values, ys: shares },
          { kind: "dots", style: "mark", xs: known.map(m => m[1]), ys: known.map(m => m[2]) },
        ],
        limits: data.limits[metric].map(([name, at]) => ({ name: `limit${name ? " " + name : ""}`, at })),
        stops: values,
        spots: i => [{ value: shares[i], style: "c1" }],
        at: i => [[0, "share", percent(shares[i])], [0, "within", seconds(values[i])]],
        rest: known.map(([name, value]) => [0, name, seconds(value)]),
      };
    };
  }

  function clockOfRun() { // its ends, and the middles of its bins
    const [start, end, bins] = data.time, width = (end - start) / bins;
    return { start, end, times: Array.from({ length: bins }, (_, i) => start + (i + 0.5) * width) };
  }

  function overTime(describe) {
    if (!data.time) return () => null;
    const { start, end, times } = clockOfRun();
    return () => {
      const { lines, format, axis, ceiling } = describe();
      if (!lines.length) return null;
      const layers = lines.flatMap(({ fill, thin, style, values }) => [
        ...(fill ? [{ kind: "area", style, xs: times, ys: values }] : []),
        { kind: "line", style: thin ? `${style} thin` : style, xs: times, ys: values },
      ]);
      const peak = most(lines.map(line => most(line.values))) || 1, high = Math.min(peak * 1.08, ceiling ?? Infinity);
      const steady = data.steady ? [{ kind: "bars", style: "steady", xs: [data.steady[0]], ends: [data.steady[1]], ys: [high] }] : [];
      return {
        x: { low: start, high: end, ticks: clockTicks, format: clock(end - start) },
        y: { low: 0, high, format: axis },
        layers: [...steady, ...layers], stops: times,
        spots: i => lines.map(line => ({ value: line.values[i], style: line.style })),
        at: i => [...lines.map(line => [line.key, line.name, format(line.values[i])]), [0, "at", seconds(times[i])]],
        rest: lines.map(line => [line.key, line.name, line.rest]),
      };
    };
  }

  function throughput({ series: { input, output } }) {
    if (!input) return { lines: [] };
    const line = (name, values, key) => ({ name, values, key, style: `c${key}`, rest: `mean ${amount(mean(values))}` });
    return { lines: [line("in", input, 2), line("out", output, 1)], format: amount, axis: brief };
  }
  function queue({ series: { running, waiting } }) {
    if (!running) return { lines: [] };
    const line = (name, values, key) => ({ name, values, key, style: `c${key}`, fill: true, rest: `mean ${amount(mean(values))}, most ${amount(most(values))}` });
    return { lines: [line("running", running, 1), line("waiting", waiting, 2)], format: amount, axis: brief };
  }
  function batch({ replicas, series: { batch: values } }) {
    if (!values) return { lines: [] };
    return { lines: [{ name: replicas > 1 ? "mean over replicas" : "mean", values, key: 1, style: "c1", fill: true, rest: `up to ${amount(most(values))}` }], format: amount, axis: brief };
  }
  function kv({ replicas, series: { kv: values, kv_peak: peak } }) {
    if (!values) return { lines: [] };
    return {
      lines: [
        { name: "mean", values, key: 1, style: "c1", fill: true, rest: percent(mean(values)) },
        { name: replicas > 1 ? "fullest replica" : "peak", values: peak, key: 2, style: "c2", thin: true, rest: percent(most(peak)) },
      ],
      format: percent, axis: percent, ceiling: 1,
    };
  }

  function serving({ at, serving: counts, crashes, restarts, slow, narrow }) {
    const { start, end, times } = clockOfRun();
    const high = (most(counts) || 1) * 1.08, upTo = values => values.map(() => high);
    const xs = at.flatMap((t, i) => [t, at[i + 1] ?? end]), ys = counts.flatMap(n => [n, n]);
    const now = i => counts[at.findLastIndex(t => t <= times[i])] ?? 0;
    const spans = (style, found) => ({ kind: "bars", style, xs: found.map(s => s[0]), ends: found.map(s => s[1]), ys: upTo(found) });
    const moments = (style, found) => ({ kind: "rules", style, xs: found, ys: upTo(found) });
    const during = (key, name, found) => i => found.some(([from, until]) => from <= times[i] && times[i] < until) ? [[key, name, ""]] : [];
    const isSlow = during(2, "slow GPUs", slow), isNarrow = during(5, "narrow links", narrow);
    const least = counts.reduce((a, b) => Math.min(a, b)), range = least < most(counts) ? `${least} to ${most(counts)}` : `${least}`;
    const legend = [[3, "crash", crashes], [4, "restart", restarts], [2, "slow GPUs", slow], [5, "narrow links", narrow]];
    return () => ({
      x: { low: start, high: end, ticks: clockTicks, format: clock(end - start) },
      y: { low: 0, high, ticks: multiples(0, high, Math.max(1, niceStep(high, 5))), format: brief },
      layers: [
        spans("slow", slow), spans("narrow", narrow),
        { kind: "area", style: "c1", xs, ys }, { kind: "line", style: "c1", xs, ys },
        moments("crash", crashes), moments("restart", restarts),
      ].filter(layer => layer.xs.length),
      stops: times,
      spots: i => [{ value: now(i), style: "c1" }],
      at: i => [[1, "serving", `${now(i)}`], ...isSlow(i), ...isNarrow(i), [0, "at", seconds(times[i])]],
      rest: [[1, "serving", range], ...legend.filter(([, , found]) => found.length).map(([key, name]) => [key, name, ""])],
    });
  }

  function arrivals() {
    const { at, ttft, mid, p50, p95, total } = data.arrivals;
    if (!at.length) return null;
    const low = at[0], high = at.at(-1), pad = (high - low) * 0.01 || 0.5;
    const least = ttft.reduce((a, b) => b < a ? b : a), greatest = Math.max(most(ttft), most(p95));
    const log = least > 0 && greatest > 50 * least;
    const stops = mid.length ? mid : at;
    return {
      x: { low: low - pad, high: high + pad, ticks: clockTicks, format: clock(high - low || 1) },
      y: { log, low: log ? least / 1.2 : 0, high: greatest * 1.1 || 1, format: duration },
      layers: [
        { kind: "dots", style: at.length < 40 ? "mark" : "", xs: at, ys: ttft },
        { kind: "line", style: "c1", xs: mid, ys: p50 },
        { kind: "line", style: "c2", xs: mid, ys: p95 },
      ].filter(layer => layer.xs.length),
      stops,
      spots: i => mid.length ? [{ value: p50[i], style: "c1" }, { value: p95[i], style: "c2" }] : [{ value: ttft[i], style: "c1" }],
      at: i => mid.length ? [[1, "median", seconds(p50[i])], [2, "p95", seconds(p95[i])], [0, "arriving about", seconds(mid[i])]]
                          : [[0, "arriving at", seconds(at[i])], [1, "TTFT", seconds(ttft[i])]],
      rest: mid.length ? [[1, "median", ""], [2, "p95", ""], [0, `dots: ${at.length < total ? `${at.length} of ` : ""}${total.toLocaleString("en")} requests`, ""]] : [[0, "one request at", seconds(at[0])]],
    };
  }
  function lengths(name) {
    const { edges, counts } = data[name];
    if (!counts.length) return () => null;
    const total = counts.reduce((a, b) => a + b, 0), first = edges[0], last = edges.at(-1);
    const log = last > 50 * first && counts.length > 1, pad = counts.length > 1 ? (last - first) * 0.01 : Math.max(2, first * 0.2);
    const range = i => edges[i + 1] - edges[i] > 1 ? `${edges[i].toLocaleString("en")}–${(edges[i + 1] - 1).toLocaleString("en")}` : edges[i].toLocaleString("en");
    const middles = counts.length === 1 ? [first] : counts.map((_, i) => log ? Math.sqrt(edges[i] * edges[i + 1]) : (edges[i] + edges[i + 1]) / 2);
    return () => ({
      x: { log, low: log ? first / 1.05 : Math.max(0, first - pad), high: log ? last * 1.05 : last + pad, format: brief },
      y: { low: 0, high: most(counts) * 1.08, format: brief },
      layers: [counts.length > 1 ? { kind: "bars", xs: edges.slice(0, -1), ends: edges.slice(1), ys: counts }
                                 : { kind: "bars", xs: [first - pad / 8], ends: [first + pad / 8], ys: counts }],
      stops: middles,
      spots: i => [{ value: counts[i], style: "c2" }],
      at: i => [[0, `${range(i)} tokens:`, `${counts[i].toLocaleString("en")} requests`], [0, "", percent(counts[i] / total)]],
      rest: counts.length > 1 ? [[0, "from", first.toLocaleString("en")], [0, "to", (last - 1).toLocaleString("en")]] : [[0, "all", range(0)]],
    });
  }

  // Long tails are drawn on a logarithmic axis to begin with.
  logSwitch.checked = Object.values(data.cdfs).some(values => values.at(-1) > 12 * values[values.length >> 1]);
  const distributions = ["ttft", "tpot", "itl", "e2e"].map(name => new Figure(`cdf-${name}`, cdf(name)));
  logSwitch.addEventListener("change", () => distributions.forEach(figure => figure.draw()));
  for (const [name, chart] of Object.entries({ throughput, queue, batch, kv })) new Figure(name, overTime(() => chart(data))).join("time");
  data.pools.forEach((pool, i) => {
    for (const [name, chart] of Object.entries({ queue, batch, kv })) new Figure(`${name}-${i}`, overTime(() => chart(pool))).join("time");
  });
  data.serving.forEach((pool, i) => new Figure(`serving-${i}`, serving(pool)).join("time"));
  new Figure("arrivals", arrivals);
  for (const name of ["prompt", "output"]) new Figure(name, lengths(name));
  page.dataset.ready = "true";
})();
