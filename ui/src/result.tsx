// One result: the verdict, what binds, charts, figures and files; by kind.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Drawn, type ChartData } from "./drawn";
import { count, dollars, percent, seconds, significant, UNKNOWN } from "./format";
import { LivePage } from "./live";
import { Card, Downloads, Errors, flat, ScenarioText, Table, Title, useAnswer } from "./parts";
import { PosttrainView, type PosttrainPage } from "./posttrain";
import { SearchView, type SearchPage } from "./search";
import { ask, at, type Started } from "./server";

export interface ServingPage {
  kind: "serving"; title: string; fleet: string; verdict: string; met: boolean | null; outcome: string; steady: string; binds: string;
  limits: { label: string; finding: string; met: boolean }[]; summary: Record<string, unknown>; scenario: string; charts?: Record<string, ChartData>; files: string[];
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
    {page.charts && <Charts charts={page.charts} />}
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

function Charts({ charts }: { charts: Record<string, ChartData> }): JSX.Element {
  const [log, setLog] = useState(false);
  const drawn = (names: string[], prefix = "") => names.filter(name => charts[name]).map(name => <Drawn key={name} chart={charts[name]!} name={`${prefix}${name}`} log={log && prefix !== ""} />);
  return <>
    <section><h2>Latency</h2><label class="switch"><input type="checkbox" checked={log} onChange={() => setLog(!log)} /> logarithmic</label>
      <div class="figures three">{drawn(["ttft", "tpot", "e2e"], "cdf-")}</div></section>
    <section><h2>Load over time</h2><p class="note">The steady part is shaded. Bands go from the lowest to the highest part of an interval.</p>
      <div class="figures two">{drawn(["queue", "throughput", "batch", "kv"])}</div></section>
  </>;
}

function AllFigures({ summary }: { summary: Record<string, unknown> }): JSX.Element {
  const [words, setWords] = useState("");
  const rows = flat(summary).filter(([key]) => key.includes(words.toLowerCase()));
  const show = (value: unknown): string => value === null ? UNKNOWN : typeof value === "number" ? (Number.isInteger(value) ? count(value) : significant(value, 5)) : String(value);
  return <section><h2>All figures</h2><label>Search <input type="search" value={words} onInput={event => setWords(event.currentTarget.value)} /></label>
    <Table tall label="All figures" head={["figure of summary.json", "value"]} rows={rows.map(([key, value]) => [key, show(value)])} /></section>;
}
