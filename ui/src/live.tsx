// A live run, followed: progress, pool states, queues, what GPUs did, and each decision with its sentence.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Bands, Legend, type Band } from "./bands";
import { count, seconds, significant } from "./format";
import { Card, Errors, Table } from "./parts";
import { ask, at, linesOf } from "./server";

interface Engine { number: number; tp: number; state: string; busy: number; seats: number; weights: number; url: string }
interface Plan { plan: string; state: string; paused: boolean; proposal: { after_step: number; plan: string; predicted_gain: number; predicted_step: number } | null }
interface Status { second: number; tokens_per_second: number; queue: number; steps: number; trained: number; events: number; fence: number; trajectories: Record<string, number>; engines: Engine[]; planner: Plan | null }
interface Sentence { at: number; kind: string; subject: string; text: string }
interface LiveState {
  name: string; over: boolean; complete: boolean; status: Status | null; note: string; problem: string; first: number; count: number; sentences: Sentence[];
  history?: { gpus: number; seconds: number; roles: { since: number; until: number; rollout: number; training: number }[]; engines: { number: number; tp: number; up: { since: number; until: number; lost: boolean }[] }[]; changed: number[] };
  steps?: { step: number; complete: number; trained: number; synced: number; samples: number; tokens: number }[];
  changes?: { step: number; what: string; outcome: string; predicted: number; realised: number | null; seconds: number }[];
  recoveries?: { replica: number; at: number; seconds: number | null }[]; tokens_per_second?: number;
}
const LOOK = 1000, MOST = 2000;

export function LivePage({ name }: { name: string }): JSX.Element {
  const [state, setState] = useState<LiveState | null>(null);
  const [told, setTold] = useState<Sentence[]>([]);
  const [errors, setErrors] = useState<string[]>([]);
  const next = useRef(0);
  useEffect(() => {
    let timer = 0, over = false;
    const look = async () => {
      let done = false, behind = false;
      try {
        const found = await ask<LiveState>(`/api/runs/${at(name)}/live?after=${next.current}`);
        if (over) return;
        next.current = found.first + found.sentences.length;
        if (found.sentences.length) setTold(old => [...old, ...found.sentences].slice(-MOST));
        setState(found); setErrors([]);
        behind = next.current < found.count;
        done = found.complete && next.current >= found.count && found.history !== undefined;
      } catch (problem) { if (!over) setErrors(linesOf(problem)); }
      if (!over && !done) timer = setTimeout(look, behind ? 50 : LOOK);
    };
    void look();
    return () => { over = true; clearTimeout(timer); };
  }, [name]);
  if (!state) return <Errors lines={errors} />;
  const status = state.status;
  return <div data-live={state.over ? "over" : "running"} data-decisions={told.length}>
    <Errors lines={[...errors, ...(state.problem ? [state.problem] : [])]} />
    <section class="answer"><p class="verdict" role="status">{state.over ? <><b>The run is over.</b> {count(state.steps?.length ?? 0)} steps, {significant(state.tokens_per_second)} tokens/s trained on.</>
      : status ? <><b>Step {count(status.trained)} of {count(status.steps)}.</b> {count(status.queue)} trajectories wait for an engine.</>
      : <>No controller answers. {state.note}</>}</p></section>
    {status && <Standing status={status} />}
    {state.history && <History state={state} />}
    <Decisions told={told} all={state.count} />
  </div>;
}

function Standing({ status }: { status: Status }): JSX.Element {
  const doing = Object.entries(status.trajectories).map(([name, number]) => `${count(number)} ${name}`).join(", ") || "none under way";
  return <>
    <div class="cards">
      <Card title="Tokens per second" figure={significant(status.tokens_per_second)} /><Card title="Waiting for an engine" figure={count(status.queue)} note="trajectories" />
      <Card title="Second of the run" figure={count(status.second)} note={`${count(status.events)} events`} /><Card title="Trajectories" figure={count(Object.values(status.trajectories).reduce((a, b) => a + b, 0))} note={doing} />
    </div>
    {status.planner && <p><b>Plan</b> {status.planner.plan}{status.planner.proposal ? `. Proposed after step ${status.planner.proposal.after_step}: ${status.planner.proposal.plan}, ${seconds(status.planner.proposal.predicted_gain)} less a step predicted (${status.planner.state})` : ". No change is proposed"}{status.planner.paused ? "; changes are paused." : "."}</p>}
    <section><h2>Engines</h2><Table label="Engines" head={["engine", "TP", "state", "turns", "seats", "weights"]} rows={status.engines.map(each => [count(each.number), count(each.tp), each.state, count(each.busy), count(each.seats), count(each.weights)])} /></section>
  </>;
}

function History({ state }: { state: LiveState }): JSX.Element {
  const history = state.history!, gpus = history.gpus || 1;
  const role = (name: "rollout" | "training", fill: number, words: string): Band => ({ name, bars: history.roles.map(each => ({ from: each.since, until: each.until, fill, height: Math.max(each[name] / gpus, 0.02), words: `${each[name]} of ${gpus} GPUs ${words} from ${seconds(each.since)} to ${seconds(each.until)}` })) });
  const engines: Band[] = history.engines.map(engine => ({ name: `${engine.number}: TP${engine.tp}`, bars: engine.up.map(up => ({ from: up.since, until: up.until, fill: 1, lost: up.lost, words: `Engine ${engine.number} was up from ${seconds(up.since)} to ${seconds(up.until)}${up.lost ? " and was lost" : ""}` })) }));
  const marks = history.changed.map(each => ({ at: each, words: `Plan changed at ${seconds(each)}` }));
  const steps = state.steps ?? [], changes = state.changes ?? [];
  return <>
    <section><h2>What GPUs did</h2><Legend parts={[["roll out", 1], ["train", 3]]} /><div class="figures one">
      <Bands title="GPUs by role" name="live-roles" bands={[role("rollout", 1, "rolled out"), role("training", 3, "trained")]} end={history.seconds} marks={marks} />
      <Bands title="Engines" name="live-engines" bands={engines} end={history.seconds} marks={marks} note="A cross: the engine was lost." /></div></section>
    <section><h2>Changes of plan</h2>{changes.length ? <Table label="Changes of plan" head={["after step", "change", "outcome", "gain predicted", "gain realised"]} rows={changes.map(each => [count(each.step), each.what, each.outcome, seconds(each.predicted), seconds(each.realised)])} /> : <p>None.</p>}</section>
    <section><h2>Steps</h2><Table tall label="Steps" head={["step", "samples complete", "trained", "engines have weights", "samples", "tokens"]} rows={steps.map(each => [count(each.step), seconds(each.complete), seconds(each.trained), seconds(each.synced), count(each.samples), count(each.tokens)])} /></section>
  </>;
}

function Decisions({ told, all }: { told: Sentence[]; all: number }): JSX.Element {
  const [words, setWords] = useState(""), [kind, setKind] = useState("");
  const kinds = [...new Set(told.map(each => each.kind))].sort();
  const wanted = words.toLowerCase();
  const shown = told.filter(each => (!kind || each.kind === kind) && (!wanted || `${each.subject} ${each.text}`.toLowerCase().includes(wanted))).slice(-300).reverse();
  return <section><h2>Decisions</h2>
    <div class="tools"><label>Search <input type="search" value={words} onInput={event => setWords(event.currentTarget.value)} /></label>
      <label>Kind <select value={kind} onChange={event => setKind(event.currentTarget.value)}><option value="">all</option>{kinds.map(each => <option key={each}>{each}</option>)}</select></label>
      <span>{count(all)} in all; the newest first</span></div>
    <ol class="told scroll tall" tabIndex={0} aria-label="Decisions">{shown.map((each, i) => <li key={`${each.at}${i}${each.text}`}><span class="time">{seconds(each.at)}</span> <span class="kind">{each.kind}</span> {each.text}</li>)}</ol>
  </section>;
}
