// The answer of a search: the fleet to buy, the Pareto frontier, and a run of any choice.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Figure, niceTicks, useWidth } from "./chart";
import { brief, count, dollars, limitName, percent, plural, seconds, significant, trimmed } from "./format";
import { Errors, Table } from "./parts";
import { ask, at, linesOf, type Started } from "./server";

interface Choice { architecture: string; name: string; rate: number; output_tokens_per_s: number; score: number; gpus: number; usd_per_hour: number; watts: number; bound: number; estimate: number; values: Record<string, number | null> }
interface Level { level: string; slo: Record<string, number>; binds: string; choices: Choice[]; frontier: string[]; sureness: { chance: number; margin: number } | null }
interface Found { name: string; objective: string; unit: string; candidates: Record<string, number>; levels: Level[] }
export interface SearchPage { kind: "search"; title: string; search: Found; scenario: string; files: string[] }
type Open = (level: string, name: string) => void;

export function SearchView({ page, run, look }: { page: SearchPage; run: string; look: () => void }): JSX.Element {
  const found = page.search;
  const [errors, setErrors] = useState<string[]>([]);
  const open: Open = (level, name) => {
    ask<{ run: string } & Partial<Started>>(`/api/runs/${at(run)}/point`, { level, name }).then(answer => {
      look();
      location.hash = answer.number === undefined ? `#/result/${at(answer.run)}` : `#/started/${answer.number}`;
    }, problem => setErrors(linesOf(problem)));
  };
  const { considered = 0, no_room = 0, refused = 0 } = found.candidates;
  return <>
    <p class="lede">Objective: {found.objective}. {count(considered)} candidates: {count(no_room)} do not fit their GPUs' memory, {count(refused)} cannot be built.</p>
    <Errors lines={errors} />
    {found.levels.map(level => <section key={level.level}>
      {level.level && <h2>{level.level}</h2>}
      <Answer level={level} />
      {level.choices.length > 0 && <><div class="figures one"><Pareto level={level} open={open} /></div><Choices level={level} open={open} unit={found.unit} /></>}
    </section>)}
  </>;
}

function Answer({ level }: { level: Level }): JSX.Element {
  const [best, other] = level.choices;
  if (!best) return <p class="verdict bad">No candidate meets the limits at any rate.</p>;
  const sure = level.sureness;
  return <div class="answer"><p class="verdict"><b>{best.name}, {best.architecture}.</b> It carries {significant(best.rate)} requests/s on {plural(best.gpus, "GPU")} for {dollars(best.usd_per_hour)} an hour.</p>
    <p><b>Binds</b> {/^[a-z0-9]+_(p\d+|mean)$/.test(level.binds) ? limitName(level.binds) : level.binds}</p>
    {other && <p><b>Next best</b> {other.architecture}, {other.name}: {significant(other.rate)} requests/s for {dollars(other.usd_per_hour)} an hour.{sure && ` The first is the better choice with ${percent(sure.chance)} certainty (seeds and stated errors of costs).`}</p>}</div>;
}

const words = (choice: Choice): string => `${choice.architecture}, ${choice.name}: ${significant(choice.rate)} requests/s, ${plural(choice.gpus, "GPU")}, ${dollars(choice.usd_per_hour)} an hour, ${Object.entries(choice.values).map(([name, value]) => `${limitName(name)} ${seconds(value)}`).join(", ")}`;

function Pareto({ level, open }: { level: Level; open: Open }): JSX.Element {
  const [box, width] = useWidth();
  const [told, setTold] = useState("");
  const height = 320, left = 64, right = width - 20, up = 12, down = height - 40;
  const choices = level.choices, best = new Set(level.frontier);
  const names = [...new Set(choices.map(each => each.architecture))];
  const mostUsd = Math.max(...choices.map(each => each.usd_per_hour)) * 1.06, mostRate = Math.max(...choices.map(each => each.rate)) * 1.08 || 1;
  const x = (usd: number) => left + usd / mostUsd * (right - left), y = (rate: number) => down - rate / mostRate * (down - up);
  const frontier = choices.filter(each => best.has(each.name)).sort((a, b) => a.usd_per_hour - b.usd_per_hour);
  return <Figure title="Price and rate of the best fleets" name="pareto" readout={told || "Point at a fleet, or reach it with Tab; Enter runs it"}
    note="The line joins fleets that no other beats in both. Only each architecture's best are kept by the search."
    rows={() => [["architecture", "fleet", "usd per hour", "requests/s", "GPUs"], ...choices.map(each => [each.architecture, each.name, each.usd_per_hour, each.rate, each.gpus])]}>
    <ul class="legend">{names.map((name, i) => <li key={name} class={`key fill${i + 1}`}>{name}</li>)}</ul>
    <div class="plot" ref={box}><svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="group" aria-label="Price and rate of the best fleets">
      {niceTicks(0, mostRate, 5).map(tick => <g key={tick}><path class="grid" d={`M${left} ${y(tick)}H${right}`} /><text x={left - 8} y={y(tick) + 4} text-anchor="end">{brief(tick)}</text></g>)}
      {niceTicks(0, mostUsd, Math.max(2, width / 110)).map(tick => <text key={tick} x={x(tick)} y={down + 17} text-anchor="middle">{trimmed(dollars(tick))}</text>)}
      <text class="label" x={(left + right) / 2} y={height - 4} text-anchor="middle">dollars an hour</text>
      <text class="label" transform={`translate(13 ${(up + down) / 2}) rotate(-90)`} text-anchor="middle">requests/s</text>
      <path class="line hue2 dashed" d={frontier.map((each, i) => `${i ? "L" : "M"}${x(each.usd_per_hour).toFixed(1)} ${y(each.rate).toFixed(1)}`).join("")} />
      {choices.map(each => <a key={`${each.architecture}${each.name}`} href="#run" role="button" aria-label={`Run ${words(each)}`} onClick={event => { event.preventDefault(); open(level.level, each.name); }}
        onPointerEnter={() => setTold(words(each))} onFocus={() => setTold(words(each))} onPointerLeave={() => setTold("")}>
        <circle class={`point fill${names.indexOf(each.architecture) + 1}${best.has(each.name) ? " best" : ""}`} cx={x(each.usd_per_hour)} cy={y(each.rate)} r={best.has(each.name) ? 7 : 5} /></a>)}
    </svg></div>
  </Figure>;
}

function Choices({ level, open, unit }: { level: Level; open: Open; unit: string }): JSX.Element {
  const scored = unit !== "dollars an hour" && unit !== "requests/s"; // which have columns of their own
  return <Table tall label={`Fleets ${level.level}`} head={["fleet", "architecture", "requests/s", "output tokens/s", "GPUs", "$ an hour", ...(scored ? [unit] : []), "latencies", "run"]}
    rows={level.choices.map(each => [each.name, each.architecture, significant(each.rate), count(each.output_tokens_per_s), count(each.gpus), dollars(each.usd_per_hour), ...(scored ? [significant(each.score)] : []),
      Object.entries(each.values).map(([name, value]) => `${limitName(name)} ${seconds(value)}`).join(", "), <button class="quiet" onClick={() => open(level.level, each.name)} aria-label={`Run ${each.architecture} ${each.name}`}>Run</button>])} />;
}
