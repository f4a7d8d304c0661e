// Runs under way: progress, cancel, and what became of them.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { seconds } from "./format";
import { Errors, Title } from "./parts";
import { ask, at, linesOf, type Row, type Started } from "./server";

export async function start(scenario: string): Promise<Started> {
  return await ask<Started>("/api/started", { names: [scenario] });
}

export function Progress({ run, look }: { run: Started; look: () => void }): JSX.Element {
  const [errors, setErrors] = useState<string[]>([]);
  const cancel = () => { ask(`/api/started/${run.number}/cancel`, {}).then(look, problem => setErrors(linesOf(problem))); };
  const share = run.total ? Math.min(1, run.done / run.total) : null;
  return <div class="progress" data-state={run.state}>
    <p><b>{run.run}</b> <span>{run.cancelling ? "ending" : run.what}{share !== null && `, ${Math.floor(share * 100)} %`} · {seconds(run.seconds)}</span></p>
    <progress {...(share === null ? {} : { value: share, max: 1 })} aria-label={`Progress of ${run.run}`} />
    <button onClick={cancel} disabled={run.cancelling}>Cancel</button>
    <Errors lines={errors} />
  </div>;
}

export function Tray({ started }: { started: Started[] }): JSX.Element {
  const running = started.filter(each => each.state === "running");
  return <p class="tray" role="status">{running.map(each => <a key={each.number} href={`#/started/${each.number}`}>
    {each.run}: {each.total ? `${Math.floor(100 * each.done / each.total)} %` : each.what}</a>)}</p>;
}

export function StartedPage({ number, started, look }: { number: number; started: Started[]; look: () => void }): JSX.Element {
  const run = started.find(each => each.number === number);
  const [waited, setWaited] = useState(false);
  useEffect(() => { const timer = setTimeout(() => setWaited(true), 3000); return () => clearTimeout(timer); }, []);
  useEffect(() => { if (run?.state === "done") location.hash = `#/result/${at(run.run)}`; }, [run?.state]);
  if (!run) return <><Title text="Run" />{waited && <Lost />}</>;
  const words = { running: "is under way", done: "is done", failed: "failed", cancelled: "was cancelled" }[run.state];
  return <>
    <Title text={run.run} />
    <p class="verdict">{run.scenario} {words}.</p>
    {run.state === "running" && <Progress run={run} look={look} />}
    <Errors lines={run.errors} />
    {run.state !== "running" && <div class="buttons">
      {run.hasResult && <a class="button" href={`#/result/${at(run.run)}`}>{run.state === "cancelled" ? "Result without its intervals" : "Result"}</a>}
      <a class="button" href={`#/edit/${at(run.scenario)}`}>Edit {run.scenario}</a>
    </div>}
  </>;
}

function Lost(): JSX.Element {
  const [rows, setRows] = useState<Row[]>([]);
  useEffect(() => {
    const look = () => { ask<Row[]>("/api/runs").then(setRows, () => {}); };
    const timer = setInterval(look, 2000);
    look();
    return () => clearInterval(timer);
  }, []);
  const newest = rows.toSorted((a, b) => b.modified - a.modified).slice(0, 5);
  return <>
    <p class="verdict">This run was started by a server that is gone. It finishes on its own. Newest results:</p>
    <ul>{newest.map(each => <li key={each.name}><a href={`#/result/${at(each.name)}`}>{each.name}</a></li>)}</ul>
  </>;
}
