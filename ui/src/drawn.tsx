// A chart of a report, drawn by the page: the same data, in the same shape.
import type { JSX } from "preact";
import { LineChart, type Axis, type Band, type Series } from "./chart";
import { brief, percent, seconds } from "./format";

type Column = (number | null)[];
interface AxisData { name: string; unit: "s" | "clock" | "share" | "number" | "whole" | "usd" | "change"; low: number; high: number; log?: boolean }
interface MarksData { kind: "line" | "band" | "spans" | "dots"; x: Column; y: Column; hue: string; name?: string; fill?: boolean; low?: Column; ends?: Column }
export interface ChartData {
  name: string; title: string; x: AxisData; y: AxisData; marks?: MarksData[]; other?: AxisData;
  limits?: { name: string; at: number; axis: "x" | "y" }[];
}

const FORMATS: Partial<Record<AxisData["unit"], (value: number) => string>> = { s: seconds, clock: seconds, share: percent };
const axis = (data: AxisData): Axis => ({ label: data.name, format: FORMATS[data.unit] ?? brief, min: data.low, max: data.high, clock: data.unit === "clock", log: data.log ?? false });
const hue = (marks: MarksData): number => Number(marks.hue) || 5;
const points = (marks: MarksData): [number, number | null][] => marks.x.map((x, i) => [x ?? 0, marks.y[i] ?? null]);
const of = (chart: ChartData, kind: MarksData["kind"]): MarksData[] => (chart.marks ?? []).filter(each => each.kind === kind);

/** The lines of a chart; one without a name is called as told. */
export const linesOf = (chart: ChartData, name: string): Series[] => of(chart, "line").map(each => ({ name: each.name || name, hue: hue(each), area: each.fill ?? false, points: points(each) }));

export function Drawn({ chart, name, log = false }: { chart: ChartData; name: string; log?: boolean }): JSX.Element {
  const x = axis(log && chart.other ? chart.other : chart.x);
  const bands: Band[] = of(chart, "band").map(each => ({ hue: hue(each), points: each.x.map((at, i) => [at ?? 0, each.low?.[i] ?? 0, each.y[i] ?? 0]) }));
  const spans = of(chart, "spans").flatMap(each => each.x.map((from, i): [number, number] => [from ?? 0, each.ends?.[i] ?? 0]));
  const marks = (chart.limits ?? []).filter(each => each.axis === "x" && each.at <= x.max!).map(each => ({ at: each.at, label: each.name }));
  const series = linesOf(chart, chart.y.name).map(each => x.log ? { ...each, points: each.points.filter(([at]) => at > 0) } : each);
  return <LineChart title={chart.title} name={name} x={x} y={axis(chart.y)} series={series} bands={bands} spans={spans} marks={marks} />;
}
