// A post-training run: what a step takes and costs, its Gantt, where its time goes, and changes of plan.
import type { JSX } from "preact";
import { Bands, type Band } from "./bands";
import { LineChart, type Series } from "./chart";
import { count, dollars, percent, plural, seconds, significant } from "./format";
import { Card, Table } from "./parts";

type Column = (number | null)[];
interface Change { step: number; what: string; outcome: string; seconds: number; predicted: number; realised: number | null; predicted_step: number; measured_step?: number | null }
interface Summary {
  mode: string; gpus: number; rollout_gpus: number; training_gpus: number; steps: number; seconds: number; tokens_per_second: number;
  step_seconds: Record<string, number>; training: Record<string, number>; gpu_time: Record<string, Record<string, number>>;
  tail_share: number; cost: Record<string, number>; staleness: Record<string, number>; reallocations?: Change[];
}
export interface PosttrainPage { kind: "posttrain"; title: string; summary: Summary; steps: Record<string, Column>; scenario: string; files: string[] }
const DRAWN = 60; // steps of the Gantt

export function PosttrainView({ page }: { page: PosttrainPage }): JSX.Element {
  const got = page.summary, parts = got.step_seconds, idle = Object.entries(got.gpu_time).map(([role, shares]) => [role, shares["idle"] ?? 0] as const);
  const busiest = idle.toSorted((a, b) => a[1] - b[1])[0];
  return <>
    <p class="lede">{plural(got.gpus, "GPU")} ({count(got.rollout_gpus)} roll out, {count(got.training_gpus)} train in the beginning), {got.mode}, {plural(got.steps, "step")}</p>
    <section class="answer">
      <p class="verdict"><b>A step takes {seconds(parts["total"])} and costs {dollars(got.cost["usd_per_step"])}.</b> {significant(got.tokens_per_second)} tokens/s trained on, {dollars(got.cost["usd_per_million_tokens"])} a million.</p>
      <p><b>Idle</b> {idle.map(([role, share]) => `${role} GPUs ${percent(share)} of the time`).join(", ")}{busiest && `: ${busiest[0]} is the longer stage`}. Training waits for samples {percent((parts["waiting"] ?? 0) / (parts["total"] || 1))} of a step. The last tenth of a batch takes {percent(got.tail_share)} of its rollout.</p>
    </section>
    <div class="cards">
      <Card title="Step" figure={seconds(parts["total"])} /><Card title="Tokens trained on" figure={`${significant(got.tokens_per_second)}/s`} />
      <Card title="Per million tokens" figure={dollars(got.cost["usd_per_million_tokens"])} /><Card title="Run" figure={seconds(got.seconds)} note={dollars(got.cost["usd"])} />
    </div>
    <section><h2>Steps</h2><div class="figures one"><Gantt steps={page.steps} /></div>
      <div class="figures two"><Waterfall got={got} /><Roles steps={page.steps} /></div></section>
    <Changes changes={got.reallocations ?? []} />
    <Steps steps={page.steps} />
  </>;
}

function Gantt({ steps }: { steps: Record<string, Column> }): JSX.Element {
  const all = steps["step"]?.length ?? 0, few = Math.min(all, DRAWN);
  const at = (name: string, i: number): number => steps[name]?.[i] ?? NaN;
  const bars = (from: string, until: string, fill: (i: number) => number, words: string) => Array.from({ length: few }, (_, i) => i)
    .filter(i => Number.isFinite(at(from, i)) && Number.isFinite(at(until, i)))
    .map(i => ({ from: at(from, i), until: at(until, i), fill: fill(i), words: `Step ${at("step", i)}: ${words} from ${seconds(at(from, i))} to ${seconds(at(until, i))}, ${seconds(at(until, i) - at(from, i))}` }));
  const rolled = bars("rollout_from", "rollout_until", i => i % 2 ? 2 : 1, "samples rolled out");
  const bands: Band[] = [
    { name: "rollout, even", bars: rolled.filter((_, i) => i % 2 === 0) }, { name: "rollout, odd", bars: rolled.filter((_, i) => i % 2 === 1) },
    { name: "training", bars: bars("train_begun", "trained", () => 3, "trained") }, { name: "weight sync", bars: bars("trained", "synced", () => 4, "weights synced") },
  ];
  const end = at("synced", few - 1) || 1;
  const marks = Array.from({ length: few }, (_, i) => i).filter(i => steps["change"]?.[i]).map(i => ({ at: at("synced", i), words: `After step ${at("step", i)}: ${String(steps["change"]![i])}` }));
  return <Bands title="When steps were rolled out, trained and synced" name="gantt" bands={bands.filter(band => band.bars.length)} end={end} marks={marks}
    {...(few < all ? { note: `The first ${few} of ${all} steps.` } : {})} />;
}

function Waterfall({ got }: { got: Summary }): JSX.Element {
  const stages = got.step_seconds, total = stages["total"] || 1;
  const trained = Object.values(got.training).reduce((sum, each) => sum + each, 0);
  const parts: [string, number, number][] = [["waiting", stages["waiting"] ?? 0, 5], ["handing over", stages["handing_over"] ?? 0, 6],
    ...Object.entries(got.training).map(([name, value]): [string, number, number] => [`training: ${name.replaceAll("_", " ")}`, value, 3]),
    ["training: between parts", Math.max(0, (stages["training"] ?? 0) - trained), 5], ["sync", stages["sync"] ?? 0, 4]];
  let sum = 0;
  const bands: Band[] = parts.filter(([, value]) => value > 1e-6 * total).map(([name, value, fill]) => {
    const from = sum;
    sum += value;
    return { name: name.replace("training: ", ""), bars: [{ from, until: sum, fill, words: `${name}: ${seconds(value)}, ${percent(value / total)} of a step` }] };
  });
  return <Bands title="The mean step, part after part" name="waterfall" bands={bands} end={total} note={`In all ${seconds(total)}, from the trainer's point of view.`} />;
}

function Roles({ steps }: { steps: Record<string, Column> }): JSX.Element {
  const per = (name: string): [number, number | null][] => (steps["step"] ?? []).map((step, i) => {
    const value = steps[name]?.[i], length = steps["seconds"]?.[i];
    return [step ?? i, typeof value === "number" && length ? value / length : null];
  });
  const series: Series[] = [{ name: "roll out", hue: 1, points: per("rollout_gpu_seconds") }, { name: "busy rolling out", hue: 1, dashed: true, points: per("rollout_busy_gpu_seconds") },
    { name: "train", hue: 3, points: per("training_gpu_seconds") }, { name: "busy training", hue: 3, dashed: true, points: per("training_busy_gpu_seconds") }];
  return <LineChart title="GPUs by role, mean of each step" name="roles" x={{ label: "step", format: count, whole: true }} y={{ label: "GPUs", min: 0 }} series={series} />;
}

function Changes({ changes }: { changes: Change[] }): JSX.Element {
  return <section><h2>Changes of plan</h2>{changes.length === 0 ? <p>None: the plan stayed as it was given.</p> : <Table label="Changes of plan"
    head={["after step", "change", "outcome", "took", "gain predicted", "gain realised", "step predicted"]}
    rows={changes.map(each => [count(each.step), each.what, each.outcome, seconds(each.seconds), seconds(each.predicted), seconds(each.realised), seconds(each.predicted_step)])} />}</section>;
}

function Steps({ steps }: { steps: Record<string, Column> }): JSX.Element {
  const names = ["seconds", "waiting", "handing_over", "training", "sync"], counted = ["samples", "tokens", "rollout_gpus", "training_gpus"];
  const rows = (steps["step"] ?? []).map((step, i) => [count(step), ...names.map(name => seconds(steps[name]?.[i])), ...counted.map(name => count(steps[name]?.[i])), dollars(steps["usd"]?.[i])]);
  return <section><h2>All steps</h2><Table tall label="All steps" head={["step", ...names, ...counted, "cost"].map(each => each.replaceAll("_", " "))} rows={rows} /></section>;
}
