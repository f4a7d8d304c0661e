// One result: the verdict, what binds, charts, figures and files; by kind.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { LineChart, type Series } from "./chart";
import { count, dollars, percent, seconds, significant, UNKNOWN } from "./format";
import { LivePage } from "./live";
import { Card, Downloads, Errors, flat, ScenarioText, Table, Title, useAnswer } from "./parts";
import { PosttrainView, type PosttrainPage } from "./posttrain";
import { SearchView, type SearchPage } from "./search";
import { ask, at, type Started } from "./server";

type Numbers = (number | null)[];
interface Figures {
  quantiles: number[]; cdfs: Record<string, Numbers>; time: [number, number, number] | null; series: Record<string, Numbers>;
  steady: [number, number] | null; limits: Record<string, [string, number][]>;
}
export interface ServingPage {
  kind: "serving"; title: string; fleet: string; verdict: string; met: boolean | null; outcome: string; steady: string; binds: string;
  limits: { label: string; finding: string; met: boolean }[]; summary: Record<string, unknown>; scenario: string; figures?: Figures; files: string[];
}
interface LiveFiles { kind: "live"; files: string[] }
type AnyPage = ServingPage | PosttrainPage | SearchPage | LiveFiles;

export function ResultPage({ name, look }: { name: string; started: Started[]; look: () => void }): JSX.Element {
  const { value: page, errors } = useAnswer(() => ask<AnyPage>(`/api/runs/${at(name)}`), [name]);
  if (!page) return <><Title text={name} /><Errors lines={errors} /></>;
  return <>
    <Title text={name} />
    {page.kind === "serving" ? <Serving page={page} /> : page.kind === "posttrain" ? <PosttrainView page={page} />
      : page.kind === "search" ? <SearchView page={page} run={name} look={look} /> : <LivePage name={name} />}
    <Downloads run={name} files={page.files} />
    {"scenario" in page && <ScenarioText text={page.scenario} />}
  </>;
}

interface Summary {
  ttft: Record<string, number | null>; tpot: Record<string, number | null>;
  throughput: Record<string, number>; cost: Record<string, number | null>; provenance: Record<string, number>;
  pools: { name: string; step_time?: Record<string, number> | null }[];
  intervals: { share: number } & Record<string, unknown> | null;
}

function Serving({ page }: { page: ServingPage }): JSX.Element {
  const got = page.summary as unknown as Summary;
  const between = (metric: string, level: string): string => {
    const part = got.intervals?.[metric] as Record<string, [number, number]> | undefined;
    const found = part?.[level];
    return found ? `${seconds(found[0])} to ${seconds(found[1])} with ${percent(got.intervals!.share)} certainty` : "";
  };
  return <>
    <p class="lede">{page.fleet}</p>
    <section class="answer">
      <p class={`verdict ${page.met === null ? "" : page.met ? "good" : "bad"}`}><b>{page.verdict}</b> {page.outcome}</p>
      {page.limits.length > 0 && <ul class="limits">{page.limits.map(each => <li key={each.label} class={each.met ? "good" : "bad"}><span aria-hidden="true">{each.met ? "✓" : "✗"}</span> <b>{each.label}</b> {each.finding}</li>)}</ul>}
      {page.binds && <p><b>Bottleneck</b> {page.binds}</p>}
      <p><b>Steady</b> {page.steady}</p>
    </section>
    <div class="cards">
      <Card title="Time to first token, p95" figure={seconds(got.ttft["p95"])} note={between("ttft", "p95")} />
      <Card title="Time per output token, p95" figure={seconds(got.tpot["p95"])} note={between("tpot", "p95")} />
      <Card title="Output tokens per second" figure={significant(got.throughput["output_tokens_per_s"])} note={`${significant(got.throughput["requests_per_s"])} requests/s`} />
      <Card title="Per million output tokens" figure={dollars(got.cost["usd_per_million_output_tokens"])} note={`${dollars(got.cost["usd"])} in all`} />
    </div>
    {page.figures && <Charts figures={page.figures} limits={page.figures.limits} />}
    <section><h2>Where step time goes</h2><Shares shares={Object.fromEntries(got.pools.filter(pool => pool.step_time).map(pool => [pool.name, pool.step_time!]))} />
      <h3>Where costs come from</h3><Shares shares={{ "step time": got.provenance }} /></section>
    <AllFigures summary={page.summary} />
  </>;
}

function Shares({ shares }: { shares: Record<string, Record<string, number>> }): JSX.Element {
  const present = (parts: Record<string, number>) => Object.fromEntries(Object.entries(parts).filter(([, share]) => share > 0));
  return <>{Object.entries(shares).map(([name, all]) => [name, present(all)] as const).map(([name, parts]) => <div class="shares" key={name}>
    <svg viewBox="0 0 1000 16" preserveAspectRatio="none" height="16" role="img" aria-label={`${name}: ${Object.entries(parts).map(([part, share]) => `${part} ${percent(share)}`).join(", ")}`}>
      {Object.entries(parts).map(([part, share], i, all) => <rect key={part} class={`fill${i + 1}`} x={1000 * all.slice(0, i).reduce((sum, [, each]) => sum + each, 0)} width={1000 * share} height="16" />)}</svg>
    <ul>{Object.entries(parts).map(([part, share], i) => <li key={part} class={`key fill${i + 1}`}>{part} {percent(share)}</li>)}<li class="owner">{name}</li></ul>
  </div>)}</>;
}

function Charts({ figures, limits }: { figures: Figures; limits: Figures["limits"] }): JSX.Element {
  const [log, setLog] = useState(false);
  const [start, end, bins] = figures.time ?? [0, 1, 1];
  const over = (name: string, key: string, hue: number, area = false): Series[] => {
    const values = figures.series[key];
    return values ? [{ name, hue, area, points: values.map((v, i) => [start + (i + 0.5) * (end - start) / bins, v]) }] : [];
  };
  const spans: [number, number][] = figures.steady ? [figures.steady] : [];
  const clock = { label: "time", format: seconds, clock: true, min: start, max: end };
  return <>
    <section><h2>Latency</h2><label class="switch"><input type="checkbox" checked={log} onChange={() => setLog(!log)} /> logarithmic</label>
      <div class="figures three">{([["ttft", "Time to first token"], ["tpot", "Time per output token"], ["e2e", "End to end"]] as const).map(([metric, title]) => {
        const points = (figures.cdfs[metric] ?? []).map((v, i): [number, number] => [v ?? 0, figures.quantiles[i]!]).filter(([v]) => !log || v > 0);
        return <LineChart key={metric} title={title} name={`cdf-${metric}`} series={[{ name: "share of requests", hue: 1, points }]}
          x={{ label: "at most", format: seconds, log, ...(log ? {} : { min: 0 }) }} y={{ label: "share of requests", format: percent, min: 0, max: 1 }}
          marks={(limits[metric] ?? []).map(([level, value]) => ({ at: value, label: `${level} limit` }))} />;
      })}</div></section>
    <section><h2>Load over time</h2>{spans.length > 0 && <p class="note">The steady part is shaded.</p>}
      <div class="figures two">
        <LineChart title="Requests in the system" name="queue" x={clock} y={{ label: "requests" }} spans={spans} series={[...over("running", "running", 1, true), ...over("waiting", "waiting", 2)]} />
        <LineChart title="Tokens per second" name="throughput" x={clock} y={{ label: "tokens/s" }} spans={spans} series={[...over("output", "output", 1, true), ...over("input", "input", 2)]} />
        <LineChart title="Batch size" name="batch" x={clock} y={{ label: "requests per step" }} spans={spans} series={over("requests per step", "batch", 1, true)} />
        <LineChart title="KV cache in use" name="kv" x={clock} y={{ label: "share", format: percent, min: 0 }} spans={spans} series={[...over("mean", "kv", 1, true), ...over("peak of a replica", "kv_peak", 2)]} />
      </div></section>
  </>;
}

function AllFigures({ summary }: { summary: Record<string, unknown> }): JSX.Element {
  const [words, setWords] = useState("");
  const rows = flat(summary).filter(([key]) => key.includes(words.toLowerCase()));
  const show = (value: unknown): string => value === null ? UNKNOWN : typeof value === "number" ? (Number.isInteger(value) ? count(value) : significant(value, 5)) : String(value);
  return <section><h2>All figures</h2><label>Search <input type="search" value={words} onInput={event => setWords(event.currentTarget.value)} /></label>
    <Table tall label="All figures" head={["figure of summary.json", "value"]} rows={rows.map(([key, value]) => [key, show(value)])} /></section>;
}
