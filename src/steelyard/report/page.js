// Draws each figure again at the width that the screen has, from the JSON beside it, with a cursor and downloads.
// Without this script the figures are the SVG that the page came with. No library, no network.
// <html data-ready> says that all are drawn; <html data-error> carries the message if one could not be.
"use strict";
(() => {
  const page = document.documentElement;
  addEventListener("error", event => { page.dataset.error = event.message; });

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
  function timeUnit(size) {
    if (size >= 7200) return [3600, "h"];
    if (size >= 120) return [60, "min"];
    return [[1, "s"], [1e-3, "ms"]].find(([scale]) => size >= scale) || [1e-6, "µs"];
  }
  function seconds(value) {
    if (value === 0) return "0 s";
    const [scale, name] = timeUnit(round(Math.abs(value), 3));
    return `${amount(value / scale)} ${name}`;
  }
  const signed = value => `${value > 0 ? "+" : ""}${trimmed(value * 100)} %`;
  const SAID = {
    s: seconds, clock: seconds, share: percent, change: signed, number: amount,
    whole: value => Math.round(value).toLocaleString("en"), usd: value => `$${amount(value)}`,
  };
  const said = (unit, value) => value === null || value === undefined ? "–" : SAID[unit](value);
  function ticked({ unit, low, high }) { // how an axis writes its values
    if (unit === "share") return percent;
    if (unit === "change") return value => value ? signed(value) : "0";
    if (unit === "usd") return value => `$${brief(value)}`;
    if (unit === "s" || unit === "clock") {
      const span = high - low;
      const shared = span >= 18000 ? [3600, "h"] : span >= 600 ? [60, "min"] : timeUnit(Math.min(span, 100));
      return value => {
        const [scale, name] = unit === "clock" ? shared : timeUnit(round(Math.abs(value), 3));
        return value === 0 ? "0" : `${trimmed(value / scale)} ${name}`;
      };
    }
    return brief;
  }

  // ---------------------------------------------------------------- scales and ticks

  const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  function niceStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * [1, 2, 5, 10].find(step => step * power >= least * 0.999999);
  }
  function multiples(low, high, step) {
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
    return ticks;
  }
  function logTicks(low, high, most) {
    const decades = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) decades.push(10 ** p);
    const within = ticks => ticks.filter(t => t >= low * 0.999 && t <= high * 1.001);
    const [fine, middling, whole] = [[1, 2, 5], [1, 3], [1]].map(steps => within(decades.flatMap(d => steps.map(s => s * d))));
    if (fine.length < 3) return multiples(low, high, niceStep((high - low) / most)).filter(t => t > 0);
    const every = Math.ceil(whole.length / most);
    return [fine, middling].find(ticks => ticks.length <= most) || whole.filter((_, i) => i % every === 0);
  }
  function ticks(axis, most) {
    const { low, high, unit } = axis, rough = (high - low) / most;
    if (axis.names) return axis.names.map((_, i) => i).filter(i => i % Math.ceil(axis.names.length / most) === 0);
    if (axis.log) return logTicks(low, high, most);
    if ((unit === "clock" || unit === "s") && rough >= 0.5 && rough <= 86400) return multiples(low, high, CLOCK.find(s => s >= rough));
    return multiples(low, high, unit === "whole" ? Math.max(1, niceStep(rough)) : niceStep(rough));
  }
  function scale(axis, from, to) {
    const at = axis.log ? Math.log : v => v;
    const low = at(axis.low), slope = (to - from) / (at(axis.high) - low);
    const place = v => from + (at(axis.log ? Math.max(v, axis.low) : v) - low) * slope;
    place.inverse = pixel => axis.log ? Math.exp(low + (pixel - from) / slope) : low + (pixel - from) / slope;
    return place;
  }
  function nearest(sorted, value) {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle; else high = middle;
    }
    return value - sorted[low] <= sorted[high] - value ? low : high;
  }

  // ---------------------------------------------------------------- drawing

  const MARGIN = { left: 48, right: 14, top: 8, bottom: 24 }, HEIGHT = 210;
  const px = value => Math.round(value * 10) / 10;
  function svg(name, attributes, parent, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }
  function element(name, attributes, parent, text) {
    const node = document.createElement(name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }
  const joined = (xs, ys) => xs.map((x, i) => `${px(x)} ${px(ys[i])}`).join("L");
  const stepped = (xs, ys) => `${px(xs[0])} ${px(ys[0])}` + xs.slice(1).map((x, i) => `H${px(x)}V${px(ys[i + 1])}`).join("");
  const steppedBack = (xs, ys) => `${px(xs[0])} ${px(ys[0])}` + xs.slice(1).map((x, i) => `V${px(ys[i + 1])}H${px(x)}`).join("");

  function runs({ x, y }) { // a line breaks where a value is missing
    const found = [[]];
    y.forEach((value, i) => {
      if (value !== null && x[i] !== null) found.at(-1).push(i);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter(run => run.length);
  }
  function curve(marks, run, across, up, floor, parent) {
    const take = (column, to) => run.map(i => to(column[i]));
    const xs = take(marks.x, across), ys = take(marks.y, up), steps = marks.kind === "steps";
    const top = `M${(steps ? stepped : joined)(xs, ys)}`;
    let below = `V${px(floor)}H${px(xs[0])}Z`;
    if (marks.low) {
      const lows = take(marks.low, up).reverse(), back = [...xs].reverse();
      below = `L${(steps ? steppedBack : joined)(back, lows)}Z`;
    }
    if (marks.kind === "band") return void svg("path", { class: `band h${marks.hue}`, d: top + below }, parent);
    if (marks.fill) svg("path", { class: `${steps ? "steps" : "area"} fill h${marks.hue}`, d: top + below }, parent);
    svg("path", { class: `line h${marks.hue}`, d: top }, parent);
  }
  function dots(marks, known, xs, ys, parent) {
    if (!marks.labels && !(marks.hollow || []).some(Boolean)) {
      const d = known.map((_, k) => `M${px(xs[k])} ${px(ys[k])}h0`).join("");
      return void svg("path", { class: `dots h${marks.hue}${known.length > 60 ? " many" : ""}`, d }, parent);
    }
    known.forEach((i, k) => {
      const kind = marks.hollow?.[i] ? "ring" : "disc";
      svg("circle", { class: `${kind} h${marks.hue}`, cx: px(xs[k]), cy: px(ys[k]), r: 4 }, parent);
    });
  }
  function drawMarks(marks, across, up, floor, parent) {
    if (["line", "steps", "band"].includes(marks.kind)) return runs(marks).forEach(run => curve(marks, run, across, up, floor, parent));
    const known = runs(marks).flat(), xs = known.map(i => across(marks.x[i])), ys = known.map(i => up(marks.y[i]));
    if (marks.kind === "dots") return dots(marks, known, xs, ys, parent);
    const ends = marks.ends && known.map(i => across(marks.ends[i]));
    const floors = known.map(i => marks.low ? up(marks.low[i]) : floor);
    const d = known.map((_, k) => ({
      rules: () => `M${px(xs[k])} ${px(floor)}V${MARGIN.top}`,
      spans: () => `M${px(xs[k])} ${px(floor)}V${MARGIN.top}H${px(ends[k])}V${px(floor)}Z`,
      bars: () => `M${px(xs[k])} ${px(floors[k])}V${px(ys[k])}h${px(Math.max(ends[k] - xs[k] - 1, 1.5))}V${px(floors[k])}Z`,
    })[marks.kind]()).join("");
    svg("path", { class: `${marks.kind} h${marks.hue}`, d }, parent);
  }

  const together = {}; // figures whose cursors move as one
  const logSwitch = document.getElementById("log-x");

  class Figure {
    constructor(box) {
      this.host = box.querySelector(".plot");
      this.readout = box.querySelector(".readout");
      this.data = JSON.parse(box.querySelector("script").textContent);
      this.marks = this.data.marks || [];
      this.group = this.data.group ? together[this.data.group] ||= [] : [];
      this.group.push(this);
      this.tools(box.querySelector(".tools"));
      this.draw();
      new ResizeObserver(() => {
        if (Math.abs(this.host.clientWidth - this.width) > 1) this.draw();
      }).observe(this.host);
    }

    draw() {
      this.width = this.host.clientWidth;
      this.room = Math.max(this.width, 160);
      this.host.replaceChildren();
      if (this.data.empty) return void element("div", { class: "empty" }, this.host, this.data.empty);
      if (this.data.bars) return this.drawBars();
      this.xAxis = logSwitch?.checked && this.data.other || this.data.x;
      this.x = scale(this.xAxis, MARGIN.left, this.room - MARGIN.right);
      this.y = scale(this.data.y, HEIGHT - MARGIN.bottom, MARGIN.top);
      this.canvas = svg("svg", { viewBox: `0 0 ${this.room} ${HEIGHT}`, role: "img", tabindex: 0 }, this.host);
      this.axes();
      for (const marks of this.marks) drawMarks(marks, this.x, this.y, HEIGHT - MARGIN.bottom, this.canvas);
      for (const limit of this.data.limits || []) this.limit(limit);
      this.cursor = svg("g", { class: "pointer" }, this.canvas);
      this.points = this.marks.filter(marks => marks.labels).flatMap(marks => marks.x.map((x, i) => ({ x, y: marks.y[i], i, marks })));
      this.points = this.points.filter(point => point.x !== null && point.y !== null).sort((a, b) => a.x - b.x);
      this.stops = this.points.length ? this.points.map(point => point.x) : this.cursorStops();
      if (this.stops.length) this.listen();
      this.rest();
    }

    cursorStops() { // of the series that has most of them
      const tracked = this.marks.filter(marks => ["line", "steps", "bars", "band"].includes(marks.kind));
      const [longest] = tracked.sort((a, b) => b.x.length - a.x.length);
      if (!longest) return [];
      const middle = i => this.xAxis.log ? Math.sqrt(longest.x[i] * longest.ends[i]) : (longest.x[i] + longest.ends[i]) / 2;
      return [...new Set(longest.x.map((x, i) => longest.kind === "bars" ? middle(i) : x))];
    }

    axes() {
      const bottom = HEIGHT - MARGIN.bottom, right = this.room - MARGIN.right, write = ticked(this.data.y);
      for (const t of ticks(this.data.y, 5)) {
        svg("path", { class: "grid", d: `M${MARGIN.left} ${px(this.y(t))}H${right}` }, this.canvas);
        svg("text", { x: MARGIN.left - 7, y: px(this.y(t)) + 4, "text-anchor": "end" }, this.canvas, write(t));
      }
      svg("path", { class: "axis", d: `M${MARGIN.left} ${bottom}H${right}` }, this.canvas);
      const most = Math.max(2, Math.floor((right - MARGIN.left) / (this.xAxis.names ? 74 : 58)));
      const along = this.xAxis.names ? i => this.xAxis.names[i].slice(0, 14) : ticked(this.xAxis);
      let last = -Infinity;
      for (const t of ticks(this.xAxis, most)) {
        const place = px(this.x(t));
        if (place - last < (place > right - 12 ? 64 : 44)) continue;
        last = place;
        svg("text", { x: place, y: HEIGHT - 6, "text-anchor": place > right - 12 ? "end" : "middle" }, this.canvas, along(t));
      }
    }

    limit({ name, at, axis }) {
      const upright = axis === "x", own = upright ? this.xAxis : this.data.y, beyond = at > own.high;
      const right = this.room - MARGIN.right, foot = HEIGHT - MARGIN.bottom;
      const place = px(upright ? beyond ? right : this.x(at) : beyond ? MARGIN.top : this.y(at));
      if (!beyond) svg("path", { class: "limit", d: upright ? `M${place} ${MARGIN.top}V${foot}` : `M${MARGIN.left} ${place}H${right}` }, this.canvas);
      const text = `${name} ${said(own.unit, at)}${beyond ? upright ? " →" : " ↑" : ""}`;
      if (!upright) return void svg("text", { class: "limit-name", x: right, y: place + 12, "text-anchor": "end" }, this.canvas, text);
      const side = beyond || place > this.room * 0.6 ? "end" : "start", shift = side === "end" ? -5 : 5;
      svg("text", { class: "limit-name", x: place + shift, y: foot - 8, "text-anchor": side }, this.canvas, text);
    }

    drawBars() { // each a row: its name, the bar, its text; on a phone the bar is below its name
      const { bars, x: axis, band } = this.data, narrow = this.room < 520, row = narrow ? 40 : 24;
      const widest = texts => Math.min(0.4 * this.room, 7 * texts.reduce((most, text) => Math.max(most, text.length), 0) + 16);
      const names = narrow ? 6 : widest(bars.map(bar => bar.label));
      const texts = widest(bars.map(bar => bar.text)), right = narrow ? this.room - 8 : this.room - texts;
      const room = Math.floor(((narrow ? this.room - texts : names) - 10) / 7); // letters of a name
      const foot = row * bars.length, across = scale(axis, names, right), write = ticked(axis);
      const place = value => px(across(Math.min(Math.max(value, axis.low), axis.high)));
      const canvas = this.canvas = svg("svg", { viewBox: `0 0 ${this.room} ${foot + 24}`, role: "img", tabindex: 0 }, this.host);
      if (band) svg("rect", { class: "shade", x: place(band[0]), y: 0, width: px(place(band[1]) - place(band[0])), height: foot }, canvas);
      for (const t of ticks(axis, Math.max(2, Math.floor((right - names) / 80)))) {
        svg("path", { class: t === 0 ? "axis" : "grid", d: `M${place(t)} 0V${foot}` }, canvas);
        const anchor = place(t) > this.room - 24 ? "end" : place(t) < 20 ? "start" : "middle";
        svg("text", { x: place(t), y: foot + 16, "text-anchor": anchor }, canvas, write(t));
      }
      bars.forEach((bar, i) => {
        const top = i * row, middle = top + (narrow ? 29 : 12), line = top + 16;
        const [start, end] = [place(bar.start || 0), place(bar.value)].sort((a, b) => a - b);
        svg("text", { class: "name", x: narrow ? 6 : names - 8, y: line, "text-anchor": narrow ? "start" : "end" }, canvas, bar.label.length > room ? `${bar.label.slice(0, room - 1)}…` : bar.label);
        svg("text", { class: "value", x: narrow ? this.room - 8 : right + 8, y: line, "text-anchor": narrow ? "end" : "start" }, canvas, bar.text);
        svg("rect", { class: `bars h${bar.hue}`, x: start, y: middle - 7, width: Math.max(end - start, 1), height: 14, rx: 2 }, canvas);
        if (!bar.interval) return;
        const [low, high] = bar.interval.map(place);
        const caps = bar.interval.filter(end => end >= axis.low && end <= axis.high).map(end => `M${place(end)} ${middle - 4}v8`);
        svg("path", { class: "whisker", d: `M${low} ${middle}H${high}${caps.join("")}` }, canvas);
      });
      const told = bars.map(bar => `${bar.label} ${bar.text}`).join("; ");
      canvas.setAttribute("aria-label", `${this.data.title}: ${told}`);
    }

    // -------------------------------------------------------------- the cursor

    listen() {
      const all = index => this.group.forEach(figure => figure.point(index));
      const leave = () => this.group.forEach(figure => figure.leave());
      this.canvas.addEventListener("pointermove", event => {
        const box = this.canvas.getBoundingClientRect(), zoom = this.room / box.width;
        const [x, y] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
        all(this.points.length ? this.closest(x, y) : nearest(this.stops, this.x.inverse(x)));
      });
      this.canvas.addEventListener("pointerleave", leave);
      this.canvas.addEventListener("blur", leave);
      this.canvas.addEventListener("keydown", event => {
        const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
        if (event.key === "Escape") leave();
        if (move === undefined) return;
        event.preventDefault();
        const from = this.index ?? Math.floor(this.stops.length / 2);
        all(Math.min(this.stops.length - 1, Math.max(0, from + move * (event.shiftKey ? 10 : 1))));
      });
    }

    closest(x, y) {
      let best = 0, least = Infinity;
      this.points.forEach((point, i) => {
        const far = (this.x(point.x) - x) ** 2 + (this.y(point.y) - y) ** 2;
        if (far < least) [best, least] = [i, far];
      });
      return best;
    }

    point(index) {
      if (!this.stops || index >= this.stops.length) return;
      this.index = index;
      this.cursor.replaceChildren();
      const at = this.stops[index], place = px(this.x(at));
      if (this.points.length) {
        const { marks, i, x, y } = this.points[index];
        this.spot(place, y, marks.hue);
        const where = this.xAxis.names ? this.xAxis.names[x] : said(this.xAxis.unit, x);
        return this.say([[marks.hue, marks.labels[i], ""], ["", this.data.y.name, said(this.data.y.unit, y)], ["", this.xAxis.name, where]]);
      }
      svg("path", { class: "cursor", d: `M${place} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}` }, this.cursor);
      const items = this.marks.map(marks => this.value(marks, at, place)).filter(Boolean);
      const bars = this.marks.find(marks => marks.kind === "bars");
      return this.say([...items, ["", this.xAxis.name, bars ? this.range(bars, at) : this.xAxis.names ? this.xAxis.names[at] : said(this.xAxis.unit, at)]]);
    }

    value(marks, at, place) { // of a series under the cursor, for the readout
      const { kind, x, y, hue, name } = marks, unit = this.data.y.unit;
      if (kind === "spans") return x.some((from, i) => from <= at && at < marks.ends[i]) && name ? [hue, name, ""] : null;
      if (kind === "rules" || kind === "dots") return null;
      const last = x.findLastIndex(from => from <= at);
      const i = kind === "steps" || kind === "bars" ? Math.max(0, last) : nearest(x, at);
      if (y[i] === null) return null;
      if (kind === "band") return name ? [hue, name, `${said(unit, marks.low[i])} – ${said(unit, y[i])}`] : null;
      if (kind !== "bars") this.spot(place, y[i], hue);
      const own = marks.low ? y[i] - marks.low[i] : y[i];
      return [hue, name || this.data.y.name, said(unit, own)];
    }

    range({ x, ends }, at) {
      const i = Math.max(0, x.findLastIndex(from => from <= at)), { unit } = this.xAxis;
      if (unit !== "whole") return `${said(unit, x[i])} – ${said(unit, ends[i])}`;
      return ends[i] - x[i] > 1 ? `${said(unit, x[i])} – ${said(unit, ends[i] - 1)}` : said(unit, x[i]);
    }

    spot(place, value, hue) {
      svg("circle", { class: `spot h${hue}`, cx: place, cy: px(this.y(value)), r: 3.6 }, this.cursor);
    }

    leave() {
      if (!this.cursor) return;
      this.index = undefined;
      this.cursor.replaceChildren();
      this.rest();
    }

    rest() {
      const named = this.marks.filter(marks => marks.name || marks.said);
      const seen = new Set(), first = named.filter(({ name, hue, said }) => !seen.has(name + hue + said) && seen.add(name + hue + said));
      this.say(first.map(({ name, hue, said }) => [name ? hue : "", name || "", said || ""]));
      this.canvas.setAttribute("aria-label", `${this.data.title}: ${this.readout.textContent}`);
    }

    say(items) { // each: [hue or nothing, label, value]
      this.readout.replaceChildren(...items.map(([hue, label, value]) => {
        const item = element("span", { class: hue ? `key h${hue}` : "" });
        item.append(label && value ? `${label} ` : label);
        if (value) element("b", {}, item, value);
        item.append(" ");
        return item;
      }));
    }

    // -------------------------------------------------------------- downloads

    tools(host) {
      const kinds = this.data.empty ? [] : [["PNG", () => this.png()], ["SVG", () => this.save("svg", "image/svg+xml", this.alone()[0])], ["CSV", () => this.save("csv", "text/csv", this.csv())]];
      for (const [kind, make] of kinds) {
        const button = element("button", { type: "button", "aria-label": `Download ${this.data.title} as ${kind}` }, host, kind);
        button.addEventListener("click", make);
      }
    }

    save(ending, type, content) {
      const link = element("a", { download: `${this.data.name}.${ending}` });
      link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    alone() { // the figure with its title, legend and style, and its size
      const head = 50, [, , width, height] = this.canvas.getAttribute("viewBox").split(" ").map(Number);
      const copy = styled(this.canvas);
      for (const [key, value] of Object.entries({ y: head, width, height })) copy.setAttribute(key, value);
      for (const name of ["tabindex", "aria-label", "role"]) copy.removeAttribute(name);
      const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: height + head, viewBox: `0 0 ${width} ${height + head}` });
      const box = getComputedStyle(this.host.closest("figure")), font = box.fontFamily, ink = box.color;
      svg("rect", { width, height: height + head, fill: box.backgroundColor }, whole);
      svg("text", { x: 12, y: 20, fill: ink, "font-size": 15, "font-weight": 600, "font-family": font }, whole, this.data.title);
      let x = 12;
      for (const item of this.readout.children) {
        const key = item.className ? getComputedStyle(item, "::before").backgroundColor : "";
        if (key) svg("rect", { x, y: 33, width: 11, height: 4, rx: 1, fill: key }, whole);
        const text = item.textContent.trim(), start = x + (key ? 16 : 0);
        svg("text", { x: start, y: 40, fill: ink, "font-size": 12, "font-family": font }, whole, text);
        x = start + 6.4 * text.length + 16;
      }
      whole.append(copy);
      return [new XMLSerializer().serializeToString(whole), width, height + head];
    }

    png() {
      const [text, width, height] = this.alone(), image = new Image(), canvas = element("canvas", { width: 2 * width, height: 2 * height });
      image.onload = () => {
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(blob => this.save("png", "image/png", blob));
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    }

    csv() {
      const { title, x: axis, y, bars } = this.data;
      const rows = bars
        ? [["name", axis.name, "from", "low", "high"], ...bars.map(bar => [bar.label, bar.value, bar.start || 0, ...(bar.interval || ["", ""])])]
        : [["series", axis.name, y.name, "low", "end"], ...this.marks.flatMap(({ x, y: ys, low, ends, labels, name }) =>
            x.map((at, i) => [labels?.[i] || name || title, axis.names ? axis.names[at] : at, ys[i] ?? "", low?.[i] ?? "", ends?.[i] ?? ""]))];
      return rows.map(row => row.map(cell).join(",")).join("\n") + "\n";
    }
  }

  function cell(value) { // text that a spreadsheet would take for a formula begins with an apostrophe
    if (typeof value === "number") return value;
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }
  const STYLE = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "font-size", "font-family"];
  function styled(node) { // a copy whose style does not depend on the page
    const copy = node.cloneNode(true), from = node.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((each, i) => {
      const own = getComputedStyle(from[i]);
      for (const name of STYLE) each.style.setProperty(name, own.getPropertyValue(name));
      each.removeAttribute("class");
    });
    copy.querySelectorAll("g:empty").forEach(each => each.remove());
    return copy;
  }

  // ---------------------------------------------------------------- the page

  function theme() { // what the system says, light, dark
    const button = document.getElementById("theme"), names = ["auto", "light", "dark"];
    const set = name => {
      if (name === "auto") delete page.dataset.theme; else page.dataset.theme = name;
      button.textContent = `Theme: ${name}`;
    };
    const kept = () => { try { return localStorage.getItem("steelyard-theme"); } catch { return null; } };
    set(names.includes(kept()) ? kept() : "auto");
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = names[(names.indexOf(page.dataset.theme || "auto") + 1) % 3];
      set(next);
      try { localStorage.setItem("steelyard-theme", next); } catch { /* the choice is not kept */ }
    });
  }
  function copying(box) { // a button that copies the text of a box
    const text = box.querySelector("pre"), button = element("button", { type: "button", class: "copy" }, box, "Copy");
    button.addEventListener("click", async () => {
      const range = document.createRange();
      range.selectNodeContents(text);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch { // not allowed here: the text is selected instead
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  theme();
  const figures = [...document.querySelectorAll("figure.chart")];
  const specs = figures.map(box => JSON.parse(box.querySelector("script").textContent));
  // Long tails are drawn on a logarithmic axis to begin with.
  if (logSwitch) logSwitch.checked = specs.some(({ other, marks }) => other && marks.some(({ x }) => x.at(-1) > 12 * x[x.length >> 1]));
  const drawn = figures.map(box => new Figure(box));
  logSwitch?.addEventListener("change", () => drawn.filter(figure => figure.data.other).forEach(figure => figure.draw()));
  document.querySelectorAll(".copied").forEach(copying);
  page.dataset.ready = "true";
})();
