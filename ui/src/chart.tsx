// Charts as SVG: lines with a cursor for pointer and keyboard, and their data as SVG or CSV files.
import { useCallback, useId, useRef, useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";
import { brief, trimmed } from "./format";

export interface Series { name: string; points: [number, number | null][]; hue: number; dashed?: boolean; hollow?: boolean; area?: boolean }
/** `clock`: moments of a run, with ticks at whole minutes. `whole`: ticks at whole numbers only. */
export interface Axis { label: string; format?: (value: number) => string; min?: number; max?: number; log?: boolean; clock?: boolean; whole?: boolean }
/** Between two curves: at, low, high. */
export interface Band { hue: number; points: [number, number, number][] }
export interface Mark { at: number; label: string }

const MARGIN = { left: 52, right: 16, top: 10, bottom: 34 };

export function niceTicks(low: number, high: number, most: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find(each => each * power >= rough * 0.999999) ?? 10);
  return niceMultiples(low, high, step);
}

const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
/** Ticks of a time axis, and how they are written: whole seconds, minutes or hours where there are some. */
export function clockTicks(low: number, high: number, most: number): { ticks: number[]; format: (value: number) => string } {
  const rough = (high - low) / most, step = rough < 0.5 || rough > 86400 ? 0 : CLOCK.find(each => each >= rough) ?? 86400;
  const ticks = step ? niceMultiples(low, high, step) : niceTicks(low, high, most);
  const [scale, unit] = (high - low) >= 18000 ? [3600, "h"] : (high - low) >= 300 ? [60, "min"] : (high - low) >= 0.5 ? [1, "s"] : [1e-3, "ms"];
  return { ticks, format: value => value === 0 ? "0" : `${Number((value / scale!).toPrecision(4))} ${unit}` };
}
const niceMultiples = (low: number, high: number, step: number): number[] => {
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step + 0);
  return ticks;
};

/** The width of a box, which may appear later than its chart: there is none before the first data. */
export function useWidth(): [box: (node: HTMLDivElement | null) => void, width: number] {
  const watcher = useRef<ResizeObserver | null>(null);
  const [width, setWidth] = useState(480);
  const box = useCallback((node: HTMLDivElement | null) => {
    watcher.current?.disconnect();
    if (!node) return;
    watcher.current = new ResizeObserver(([entry]) => entry && setWidth(Math.max(240, Math.round(entry.contentRect.width))));
    watcher.current.observe(node);
  }, []);
  return [box, width];
}

export function save(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const cell = (value: unknown): string => {
  const text = String(value ?? "");
  const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
};
export const csv = (rows: unknown[][]): string => rows.map(row => row.map(cell).join(",")).join("\n") + "\n";

/** The picture with the colours that it has on the page, as a file of its own. */
function drawing(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const originals = [svg, ...svg.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((each, i) => {
    const style = getComputedStyle(each);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "font-size", "font-family"])
      copies[i]?.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

export function Figure({ title, name, rows, readout, children, note }: {
  title: string; name: string; rows: () => unknown[][]; readout?: ComponentChildren; note?: ComponentChildren; children: ComponentChildren;
}): JSX.Element {
  const body = useRef<HTMLElement>(null);
  const picture = () => body.current?.querySelector("svg");
  return <figure ref={body} data-figure={name}>
    <figcaption>{title}
      <span class="saves">
        <button class="quiet" onClick={() => { const svg = picture(); if (svg) save(`${name}.svg`, drawing(svg), "image/svg+xml"); }} aria-label={`${title}: save as SVG`}>SVG</button>
        <button class="quiet" onClick={() => save(`${name}.csv`, csv(rows()), "text/csv")} aria-label={`${title}: save as CSV`}>CSV</button>
      </span>
    </figcaption>
    {readout !== undefined && <p class="readout">{readout}</p>}
    {children}
    {note && <p class="note">{note}</p>}
  </figure>;
}

const path = (points: [number, number | null][], x: (v: number) => number, y: (v: number) => number): string => {
  let text = "", pen = "M";
  for (const [a, b] of points) {
    if (b === null || !Number.isFinite(b)) { pen = "M"; continue; }
    text += `${pen}${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
    pen = "L";
  }
  return text;
};

const around = (points: Band["points"], x: (v: number) => number, y: (v: number) => number): string =>
  `${path(points.map(([at, , high]) => [at, high]), x, y)}${path(points.map(([at, low]): [number, number] => [at, low]).reverse(), x, y).replace("M", "L")}Z`;

export function LineChart({ title, name, x, y, series, limits = [], marks = [], height = 220, note, spans = [], bands = [] }: {
  title: string; name: string; x: Axis; y: Axis; series: Series[]; limits?: Mark[]; marks?: Mark[]; height?: number;
  note?: ComponentChildren; spans?: [number, number][]; bands?: Band[];
}): JSX.Element {
  const [box, width] = useWidth();
  const [cursor, setCursor] = useState<number | null>(null);
  const clip = useId().replaceAll(":", "");
  const xs = series.flatMap(each => each.points.filter(([, b]) => b !== null).map(([a]) => a));
  const ys = series.flatMap(each => each.points.map(([, b]) => b).filter((b): b is number => b !== null));
  if (!xs.length) return <Figure title={title} name={name} rows={() => []}><div class="empty">Nothing to show</div></Figure>;
  const low = x.min ?? Math.min(...xs), high = Math.max(x.max ?? Math.max(...xs), low + 1e-12);
  const bottom = y.min ?? 0, top = Math.max(y.max ?? Math.max(...ys, ...limits.map(each => each.at)) * 1.06, bottom + 1e-12);
  const [left, right] = [MARGIN.left, width - MARGIN.right], [up, down] = [MARGIN.top, height - MARGIN.bottom];
  const place = x.log ? Math.log : (v: number) => v;
  const px = (v: number) => left + (place(v) - place(low)) / (place(high) - place(low)) * (right - left);
  const py = (v: number) => down - (v - bottom) / (top - bottom) * (down - up);
  const every = [...new Set(xs)].sort((a, b) => a - b);
  const nearest = (pixel: number) => every.reduce((best, each) => Math.abs(px(each) - pixel) < Math.abs(px(best) - pixel) ? each : best, every[0]!);
  const formatX = x.format ?? brief, formatY = y.format ?? brief;
  const valueAt = (each: Series, at: number) => each.points.find(([a]) => a === at)?.[1] ?? null;
  const keys = (event: KeyboardEvent) => {
    const now = cursor === null ? -1 : every.indexOf(cursor);
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -every.length, End: every.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setCursor(every[Math.min(every.length - 1, Math.max(0, now < 0 ? (step > 0 ? 0 : every.length - 1) : now + step))] ?? null);
  };
  const logTicks = () => [1, 2, 5].flatMap(s => [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5].map(p => s * 10 ** p)).filter(v => v >= low && v <= high).sort((a, b) => a - b);
  const clock = x.clock ? clockTicks(low, high, Math.max(2, width / 110)) : null;
  const ticks = clock?.ticks ?? (x.log ? logTicks() : niceTicks(low, high, Math.min(Math.max(2, width / 110), x.whole ? Math.max(1, high - low) : Infinity)));
  const tickX = clock?.format ?? (value => trimmed(formatX(value))), tickY = (value: number) => trimmed(formatY(value));
  const shown = series.filter(each => each.points.length);
  const readout = shown.map(each => {
    const value = cursor === null ? null : valueAt(each, cursor);
    return <span key={each.name} class={`key hue${each.hue}${each.dashed ? " dashed" : ""}`}>{each.name}{value !== null && <b> {formatY(value)}</b>} </span>;
  });
  return <Figure title={title} name={name} note={note} rows={() => [[x.label, ...series.map(each => each.name)], ...every.map(at => [at, ...series.map(each => valueAt(each, at))])]}
    readout={<>{readout}{cursor !== null && <span>at {formatX(cursor)}</span>}</>}>
    <div class="plot" ref={box}>
      <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" tabIndex={0} onKeyDown={keys}
        aria-label={`${title}: ${y.label} by ${x.label}, ${shown.map(each => each.name).join(", ")}. Arrow keys move along it.`}
        onPointerMove={event => setCursor(nearest((event.offsetX) * width / (event.currentTarget.clientWidth || width)))}
        onPointerLeave={() => setCursor(null)} onBlur={() => setCursor(null)}>
        <clipPath id={clip}><rect x={left - 4} y={up - 2} width={right - left + 8} height={down - up + 4} /></clipPath>
        {spans.map(([from, until]) => <rect key={from} class="span" x={px(Math.max(from, low))} y={up} width={Math.max(0, px(Math.min(until, high)) - px(Math.max(from, low)))} height={down - up} />)}
        {niceTicks(bottom, top, 4).map(tick => <g key={tick}><path class="grid" d={`M${left} ${py(tick)}H${right}`} /><text x={left - 7} y={py(tick) + 4} text-anchor="end">{tickY(tick)}</text></g>)}
        {ticks.map(tick => <text key={tick} x={px(tick)} y={down + 16} text-anchor={px(tick) > right - 12 ? "end" : "middle"}>{tickX(tick)}</text>)}
        <text class="label" x={(left + right) / 2} y={height - 3} text-anchor="middle">{x.label}</text>
        <path class="axis" d={`M${left} ${down}H${right}`} />
        <g clip-path={`url(#${clip})`}>
          {bands.map((each, i) => <path key={i} class={`band hue${each.hue}`} d={around(each.points, px, py)} />)}
          {limits.map(each => <path key={each.label} class="limit" d={`M${left} ${py(each.at)}H${right}`} />)}
          {marks.map(each => <path key={each.label} class="mark" d={`M${px(each.at)} ${up}V${down}`} />)}
          {shown.filter(each => each.area).map(each => <path key={`a${each.name}`} class={`area hue${each.hue}`} d={`${path(each.points, px, py)}L${px(each.points.at(-1)![0]).toFixed(1)} ${down}L${px(each.points[0]![0]).toFixed(1)} ${down}Z`} />)}
          {shown.map(each => <path key={each.name} class={`line hue${each.hue}${each.dashed ? " dashed" : ""}`} d={path(each.points, px, py)} />)}
          {shown.filter(each => each.points.length <= 24).flatMap(each => each.points.filter(([, b]) => b !== null).map(([a, b]) =>
            <circle key={`${each.name}${a}`} class={`dot hue${each.hue}${each.hollow ? " hollow" : ""}`} cx={px(a)} cy={py(b!)} r={3} />))}
          {cursor !== null && <path class="cursor" d={`M${px(cursor)} ${up}V${down}`} />}
          {cursor !== null && shown.map(each => { const v = valueAt(each, cursor); return v === null ? null : <circle key={each.name} class={`dot hue${each.hue}`} cx={px(cursor)} cy={py(v)} r={4.5} />; })}
        </g>
        {limits.map(each => <text key={each.label} class="limit-name" x={right - 2} y={Math.max(up + 10, py(each.at) - 4)} text-anchor="end">{each.label}</text>)}
        {marks.map(each => <text key={each.label} class="mark-name" x={px(each.at) + 4} y={up + 10}>{each.label}</text>)}
      </svg>
    </div>
  </Figure>;
}
