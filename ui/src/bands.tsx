// Rows of bars over time: Gantt charts of steps, roles and engines.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { clockTicks, Figure, useWidth } from "./chart";
import { seconds } from "./format";

export interface Bar { from: number; until: number; fill: number; words: string; lost?: boolean; height?: number }
export interface Band { name: string; bars: Bar[] }
const LEFT = 92, RIGHT = 12, ROW = 24, BOTTOM = 32;

export function Bands({ title, name, bands, end, marks = [], note }: { title: string; name: string; bands: Band[]; end: number; marks?: { at: number; words: string }[]; note?: string }): JSX.Element {
  const [box, width] = useWidth();
  const [told, setTold] = useState("");
  const [place, setPlace] = useState<[number, number] | null>(null);
  const height = bands.length * ROW + BOTTOM + 6;
  const x = (at: number) => LEFT + Math.min(1, Math.max(0, at / (end || 1))) * (width - LEFT - RIGHT);
  const clock = clockTicks(0, end, Math.max(2, width / 120));
  const keys = (event: KeyboardEvent) => {
    const [row, i] = place ?? [0, -1];
    const move = ({ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] } as Record<string, [number, number]>)[event.key];
    if (!move) return;
    event.preventDefault();
    const next = Math.min(bands.length - 1, Math.max(0, row + move[0]));
    const at = Math.min((bands[next]?.bars.length ?? 1) - 1, Math.max(0, i + move[1]));
    setPlace([next, at]);
    setTold(bands[next]?.bars[at]?.words ?? "");
  };
  return <Figure title={title} name={name} note={note} readout={told || "Point at a bar, or move with arrow keys"}
    rows={() => [["row", "from s", "until s", "what"], ...bands.flatMap(band => band.bars.map(bar => [band.name, bar.from, bar.until, bar.words])), ...marks.map(mark => ["", mark.at, mark.at, mark.words])]}>
    <div class="plot" ref={box}><svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" tabIndex={0} onKeyDown={keys} onPointerLeave={() => setTold("")}
      aria-label={`${title}, ${bands.length} rows over ${seconds(end)}. Arrow keys move from bar to bar.`}>
      {clock.ticks.map(tick => <g key={tick}><path class="grid" d={`M${x(tick)} 0V${height - BOTTOM}`} /><text x={x(tick)} y={height - BOTTOM + 16} text-anchor="middle">{clock.format(tick)}</text></g>)}
      {bands.map((band, row) => <g key={band.name}>
        <text x={LEFT - 8} y={row * ROW + 18} text-anchor="end">{band.name}</text>
        {band.bars.map((bar, i) => { const share = bar.height ?? 1, full = ROW - 6; return <rect key={i} class={`fill${bar.fill}${place?.[0] === row && place[1] === i ? " chosen" : ""}`} x={x(bar.from)} y={row * ROW + 4 + full * (1 - share)}
          width={Math.max(0.8, x(bar.until) - x(bar.from))} height={full * share} onPointerEnter={() => setTold(bar.words)} />; })}
        {band.bars.filter(bar => bar.lost).map(bar => <path key={bar.until} class="lost" d={`M${x(bar.until) - 4} ${row * ROW + 8}l8 8m0 -8l-8 8`} />)}
      </g>)}
      {marks.map(mark => <path key={mark.at} class="mark" d={`M${x(mark.at)} 0V${height - BOTTOM}`} onPointerEnter={() => setTold(mark.words)} />)}
    </svg></div>
  </Figure>;
}

export function Legend({ parts }: { parts: [string, number][] }): JSX.Element {
  return <ul class="legend">{parts.map(([name, fill]) => <li key={name} class={`key fill${fill}`}>{name}</li>)}</ul>;
}
