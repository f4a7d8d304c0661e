// Results side by side: figures with their differences from the first, and what differs in their scenarios.
import type { JSX } from "preact";
import { LineChart, type Series } from "./chart";
import { linesOf } from "./drawn";
import { count, dollars, percent, seconds, significant } from "./format";
import { Errors, flat, Table, Title, useAnswer } from "./parts";
import type { ServingPage } from "./result";
import { ask, at } from "./server";

type Figure = [title: string, key: string, show: (value: number | null) => string];
const FIGURES: Figure[] = [
  ["Requests/s", "throughput.requests_per_s", significant], ["Output tokens/s", "throughput.output_tokens_per_s", significant],
  ["TTFT p50", "ttft.p50", seconds], ["TTFT p95", "ttft.p95", seconds], ["TTFT p99", "ttft.p99", seconds],
  ["TPOT p50", "tpot.p50", seconds], ["TPOT p95", "tpot.p95", seconds], ["End to end p95", "e2e.p95", seconds],
  ["GPUs", "gpus", count], ["$ per million output tokens", "cost.usd_per_million_output_tokens", dollars],
  ["Preemptions", "preemptions", count], ["Prefix hits", "prefix_cache.hit_rate", percent], ["Busy", "busy", percent],
];

const number = (page: ServingPage, key: string): number | null => {
  const found = Object.fromEntries(flat(page.summary))[key];
  return typeof found === "number" ? found : null;
};

/** The 90 % interval that a run states for a figure. */
function interval(page: ServingPage, key: string): [number, number] | null {
  const found = key.split(".").reduce<unknown>((at, part) => (at as Record<string, unknown> | undefined)?.[part], page.summary["intervals"] ?? undefined);
  return Array.isArray(found) && found.length === 2 ? found as [number, number] : null;
}

function difference(page: ServingPage, first: ServingPage, key: string): string {
  const [one, other] = [number(first, key), number(page, key)];
  if (one === null || other === null || one === 0 || one === other) return "";
  const [a, b] = [interval(first, key), interval(page, key)];
  const within = a && b && a[0] <= b[1] && b[0] <= a[1] ? ", intervals overlap" : "";
  const change = other / one - 1;
  const size = Math.abs(change) < 0.0005 ? "about equal" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
  return ` (${size}${within})`;
}

export function ComparePage({ names }: { names: string[] }): JSX.Element {
  const { value: pages, errors } = useAnswer(() => Promise.all(names.map(name => ask<ServingPage>(`/api/runs/${at(name)}`))), [names.join("/")]);
  if (!pages) return <><Title text="Compare" /><Errors lines={errors} /></>;
  const other = pages.findIndex(page => page.kind !== "serving");
  if (other >= 0) return <><Title text="Compare" /><p>{names[other]} is no serving result. Only serving results are set side by side here; steelyard compare does it for post-training.</p></>;
  const first = pages[0]!;
  const rows = FIGURES.map(([title, key, show]) => [title, ...pages.map((page, i) => `${show(number(page, key))}${i ? difference(page, first, key) : ""}`)]);
  const written = pages.map(page => Object.fromEntries(flat(JSON.parse(page.scenario || "{}"))));
  const keys = [...new Set(written.flatMap(Object.keys))].filter(key => new Set(written.map(each => String(each[key]))).size > 1);
  const cdf = (metric: string): Series[] => pages.flatMap((page, i) => page.charts?.[metric] ? linesOf(page.charts[metric], "").map(line => ({ ...line, name: names[i]!, hue: i + 1, area: false })) : []);
  return <>
    <Title text={`${names.length} results side by side`} />
    <p class="note">Differences are from {names[0]}. Where the 90 % intervals of two runs overlap, the difference may come from seeds or errors of costs; <code>steelyard compare</code> tells which.</p>
    <Table label="Figures" head={["", ...names]} rows={rows} />
    <div class="figures two">
      {(["ttft", "tpot"] as const).map(metric => <LineChart key={metric} name={`compare-${metric}`} title={metric === "ttft" ? "Time to first token" : "Time per output token"}
        x={{ label: "at most", format: seconds, min: 0 }} y={{ label: "share of requests", format: percent, min: 0, max: 1 }} series={cdf(metric)} />)}
    </div>
    <section><h2>What differs in the scenarios</h2>{keys.length ? <Table label="Differences of scenarios" head={["key", ...names]} rows={keys.map(key => [key, ...written.map(each => key in each ? String(each[key]) : "not given")])} /> : <p>Nothing.</p>}</section>
  </>;
}
