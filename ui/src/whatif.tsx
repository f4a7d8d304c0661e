// What-if: sliders, and curves of latency and throughput by rate that follow them, beside a pinned baseline.
import type { JSX } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { LineChart, type Mark, type Series } from "./chart";
import { count, dollars, limitName, plural, seconds, significant } from "./format";
import { Errors, Table, Title, useAnswer } from "./parts";
import { ask, at, lines, linesOf } from "./server";

interface Knobs { rate: number; replicas: number | null; prefill: number | null; tp: number | null; seats: number | null }
interface Sliders {
  own: Knobs; rates: number[]; slo: Record<string, number>;
  ranges: { rate: [number, number]; replicas?: [number, number]; together?: boolean; tp?: number[]; seats: number[] };
}
interface Point {
  rate: number; errors?: string[]; round?: number; final: boolean; ttft: number | null; tpot: number | null; e2e: number | null; tokens: number | null; steady: boolean;
  overloaded: boolean; reason: string; gpus: number; usdPerHour: number; usdPerMillion: number | null; requests: number; binds: string;
}
interface Curve { knobs: Knobs; points: Point[]; whole: boolean; settled: boolean; errors: string[] }

const TAB = crypto.randomUUID();
const shape = (knobs: Knobs): string => [knobs.replicas, knobs.prefill, knobs.tp, knobs.seats].join(" ");

export function WhatIfPage({ name }: { name: string }): JSX.Element {
  const { value: sliders, errors } = useAnswer(() => ask<Sliders>(`/api/whatif/${at(name)}`), [name]);
  return <>
    <Title text={`What if: ${name}`}><p class="lede">Drag, and see what latency and throughput answer. <a href={`#/edit/${at(name)}`}>Edit the scenario</a></p></Title>
    <Errors lines={errors} />
    {sliders && <Board name={name} sliders={sliders} />}
  </>;
}

/** The curve of some settings. It is whole after the first round of simulations; points that had not settled come again. */
function useCurve(name: string, knobs: Knobs, rates: number[]): { curve: Curve; redrawn: number } {
  const [curve, setCurve] = useState<Curve>({ knobs, points: [], whole: false, settled: false, errors: [] });
  const [redrawn, setRedrawn] = useState(0);
  const known = useRef(new Map<string, Map<number, Point>>());
  useEffect(() => {
    const begun = performance.now(), control = new AbortController();
    const points = known.current.get(shape(knobs)) ?? new Map<number, Point>();
    known.current.set(shape(knobs), points);
    let problems: string[] = [], frame = 0, timed = false;
    const draw = (whole: boolean, settled: boolean) => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        setCurve({ knobs, points: [...points.values()].sort((a, b) => a.rate - b.rate), whole, settled, errors: problems });
        if (whole && !timed) { timed = true; requestAnimationFrame(() => setRedrawn(performance.now() - begun)); }
      });
    };
    const wanted = [knobs.rate, ...rates];
    const final = () => [...points.values()].filter(point => point.final).map(point => point.rate);
    if (wanted.every(rate => points.get(rate)?.final)) { draw(true, true); return () => cancelAnimationFrame(frame); }
    const load = async () => {
      let whole = false;
      draw(false, false);
      try {
        for await (const point of lines<Point>("/api/whatif", { tab: TAB, name, knobs, known: final() }, control.signal)) {
          if (point.errors) problems = [...new Set([...problems, ...point.errors])];
          else if (point.round) whole = true;
          else points.set(point.rate, point);
          draw(whole, false);
        }
        draw(true, true);
      } catch (problem) {
        if (control.signal.aborted) return;
        problems = linesOf(problem);
        draw(true, true);
      }
    };
    void load();
    return () => { cancelAnimationFrame(frame); control.abort(); };
  }, [JSON.stringify(knobs)]);
  return { curve, redrawn };
}

function Board({ name, sliders }: { name: string; sliders: Sliders }): JSX.Element {
  const { own, ranges, slo } = sliders;
  const [knobs, setKnobs] = useState(own);
  const [pinned, setPinned] = useState<Curve | null>(null);
  const rates = useMemo(() => sliders.rates.map(share => share * own.rate), []);
  const { curve, redrawn } = useCurve(name, knobs, rates);
  const shown = curve.points.filter(point => point.rate === curve.knobs.rate || rates.includes(point.rate));
  const now = shown.find(point => point.rate === curve.knobs.rate) ?? null;
  const base = pinned?.points.find(point => point.rate === pinned.knobs.rate) ?? null;
  const limit = (metric: string): Mark[] => Object.entries(slo).filter(([key]) => key === `${metric}_p95`).map(([, value]) => ({ at: value, label: `limit ${seconds(value)}` }));
  const top = (metric: "ttft" | "tpot"): number => {
    const calm = [...shown, ...pinned?.points ?? []].filter(point => point.steady).map(point => point[metric] ?? 0);
    const all = [...shown, ...pinned?.points ?? []].map(point => point[metric] ?? 0);
    return Math.max(...(calm.length ? calm : all).map(v => v * 1.3), ...limit(metric).map(each => each.at * 1.3), 1e-6);
  };
  const chart = (metric: "ttft" | "tpot" | "tokens", title: string, label: string, format: (v: number) => string) => {
    const series: Series[] = [...line("now", 1, shown, metric), ...(pinned ? line("baseline", 2, pinned.points, metric) : [])];
    return <LineChart title={title} name={`whatif-${metric}`} series={series} height={230}
      x={{ label: "requests/s", format: v => significant(v), min: 0, max: Math.max(...rates) * 1.02 }}
      y={{ label, format, min: 0, ...(metric === "tokens" ? {} : { max: top(metric) }) }}
      limits={metric === "tokens" ? [] : limit(metric)} marks={[{ at: knobs.rate, label: "" }]} />;
  };
  return <div class="whatif" data-shape={shape(curve.knobs)} data-rate={curve.knobs.rate} data-whole={curve.whole} data-settled={curve.settled} data-redrawn={redrawn.toFixed(0)}>
    <form class="sliders" onSubmit={event => event.preventDefault()} aria-label="Settings">
      <Slider label="Rate" unit="requests/s" value={knobs.rate} own={own.rate} steps={between(ranges.rate)} show={v => significant(v)} onChange={rate => setKnobs({ ...knobs, rate })} />
      {ranges.replicas && knobs.replicas !== null && <Slider label="Replicas" value={knobs.replicas} own={own.replicas!} steps={whole(...ranges.replicas)} show={count}
        onChange={replicas => setKnobs({ ...knobs, replicas, prefill: fitted(knobs, replicas) })} />}
      {ranges.tp && knobs.tp !== null && <Slider label="GPUs per replica (TP)" value={knobs.tp} own={own.tp!} steps={ranges.tp} show={count} onChange={tp => setKnobs({ ...knobs, tp })} />}
      {ranges.replicas && knobs.prefill !== null && knobs.replicas !== null && (knobs.replicas > 1 || ranges.together) && <Slider label="Prefill : decode" value={knobs.prefill} own={own.prefill!}
        steps={whole(ranges.together ? 0 : 1, Math.max(knobs.replicas - 1, 0))} show={v => v ? `${v} : ${knobs.replicas! - v}` : "together"} onChange={prefill => setKnobs({ ...knobs, prefill })} />}
      {knobs.seats !== null && <Slider label="Batch limit (max_num_seqs)" value={knobs.seats} own={own.seats!} steps={ranges.seats} show={count} onChange={seats => setKnobs({ ...knobs, seats })} />}
      <div class="buttons">
        <button onClick={() => setPinned(curve)} disabled={!curve.settled || !now}>Pin as baseline</button>
        <button onClick={() => setPinned(null)} disabled={!pinned}>Unpin</button>
        <button onClick={() => setKnobs(own)} disabled={JSON.stringify(knobs) === JSON.stringify(own)}>Reset</button>
      </div>
      <p class="note">Each point is a short simulation, of up to 30 s of arrivals, and a longer one where that has not settled; at a rate all settings get the same requests. Figures are of the steady part. Where requests pile up the line is dashed: latency there grows as long as the run lasts. For final figures run the scenario.</p>
    </form>
    <div class="answers">
      <Errors lines={curve.errors} />
      <p class="verdict" role="status">{now ? sentence(now, slo) : "Simulating"}</p>
      <Table label="Now and baseline" head={["", "now", ...(pinned ? ["baseline", "difference"] : [])]} rows={beside(now, base, curve.knobs, pinned?.knobs ?? null)} />
      <div class="figures two">
        {chart("ttft", "Time to first token, p95", "seconds", seconds)}
        {chart("tpot", "Time per output token, p95", "seconds", seconds)}
        {chart("tokens", "Output tokens per second", "tokens/s", v => significant(v))}
      </div>
    </div>
  </div>;
}

function line(name: string, hue: number, points: Point[], metric: "ttft" | "tpot" | "tokens"): Series[] {
  const first = points.findIndex(point => !point.steady);
  const calm = first < 0 ? points : points.slice(0, first), piled = first < 0 ? [] : points.slice(Math.max(0, first - 1));
  const of = (some: Point[]): [number, number | null][] => some.map(point => [point.rate, point[metric]]);
  return [{ name, hue, points: of(calm) }, ...(piled.length ? [{ name: `${name}, not steady`, hue, points: of(piled), dashed: true, hollow: true }] : [])];
}

function sentence(point: Point, slo: Record<string, number>): string {
  const missed = Object.entries(slo).filter(([key, value]) => {
    const [metric, level] = key.split("_");
    const found = level === "p95" && (metric === "ttft" || metric === "tpot" || metric === "e2e") ? point[metric] : undefined;
    return found !== undefined && (found === null || found > value);
  }).map(([key]) => limitName(key));
  const checked = Object.keys(slo).filter(key => /^(ttft|tpot|e2e)_p95$/.test(key)).length;
  const verdict = point.overloaded ? "Requests pile up at this rate." : !point.steady ? (point.final ? `Not steady: ${point.reason}.` : "Settling.") : missed.length ? `Misses ${missed.join(" and ")}.` : checked ? `Meets ${checked === 1 ? "its p95 limit" : checked === 2 ? "both p95 limits" : `all ${checked} p95 limits`}.` : "It carries this rate.";
  return `${verdict} ${plural(point.gpus, "GPU")}, ${dollars(point.usdPerHour)} an hour${point.binds ? `; ${point.binds} bind` : ""}.`;
}

const ROWS: [string, (point: Point) => number | null, (value: number | null) => string][] = [
  ["TTFT p95", point => point.ttft, seconds], ["TPOT p95", point => point.tpot, seconds], ["End to end p95", point => point.e2e, seconds],
  ["Output tokens/s", point => point.tokens, significant], ["GPUs", point => point.gpus, count], ["$ an hour", point => point.usdPerHour, dollars],
  ["$ per million output tokens", point => point.usdPerMillion, dollars],
];

function beside(now: Point | null, base: Point | null, knobs: Knobs, pinned: Knobs | null): string[][] {
  const words = (each: Knobs) => [`${significant(each.rate)}/s`, each.replicas === null ? "" : each.prefill ? `${each.prefill} + ${each.replicas - each.prefill} replicas` : `${each.replicas} replicas`,
    each.tp === null ? "" : `TP ${each.tp}`, each.seats === null ? "" : `batch ${each.seats}`].filter(Boolean).join(", ");
  const settings = ["Settings", words(knobs), ...(pinned ? [words(pinned), ""] : [])];
  return [settings, ...ROWS.map(([title, value, show]) => {
    const [a, b] = [now ? value(now) : null, base ? value(base) : null];
    const change = a !== null && b ? `${a >= b ? "+" : "−"}${significant(Math.abs(a / b - 1) * 100)} %` : "";
    return [title, show(a), ...(pinned ? [show(b), a === b ? "same" : change] : [])];
  })];
}

const whole = (low: number, high: number): number[] => Array.from({ length: high - low + 1 }, (_, i) => low + i);
const between = ([low, high]: [number, number]): number[] => whole(0, 60).map(i => Number((low * (high / low) ** (i / 60)).toPrecision(4)));
function fitted(knobs: Knobs, replicas: number): number | null {
  if (!knobs.prefill || knobs.replicas === null) return knobs.prefill;
  return Math.min(replicas - 1, Math.max(1, Math.round(knobs.prefill / knobs.replicas * replicas)));
}

function Slider({ label, unit, value, own, steps, show, onChange }: {
  label: string; unit?: string; value: number; own: number; steps: number[]; show: (value: number) => string; onChange: (value: number) => void;
}): JSX.Element {
  const all = steps.includes(own) ? steps : [...steps, own].sort((a, b) => a - b);
  const place = all.reduce((best, each, i) => Math.abs(each - value) < Math.abs(all[best]! - value) ? i : best, 0);
  const id = useId();
  return <div class="slider"><label for={id}>{label}</label> <output for={id}>{show(value)}{unit ? ` ${unit}` : ""}</output>
    <input id={id} type="range" min={0} max={all.length - 1} step={1} value={place} aria-valuetext={show(value)} disabled={all.length < 2}
      onInput={event => onChange(all[Number(event.currentTarget.value)] ?? own)} /></div>;
}
