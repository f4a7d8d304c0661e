// Home: scenarios to edit and run, runs under way, and past results to search, sort, compare and delete.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { count, day, dollars, seconds, significant } from "./format";
import { Errors, Question, Title, useAnswer } from "./parts";
import { ask, at, linesOf, type Home, type Row, type Started } from "./server";
import { Progress, start } from "./started";

const KINDS: Record<string, string> = { serving: "Serving", search: "Search", posttrain: "Post-training", live: "Live", learning: "Live", unknown: "Unreadable" };
type Column = [key: keyof Row, title: string, show: (row: Row) => string];
const COLUMNS: Column[] = [
  ["kind", "Kind", row => KINDS[row.kind] ?? row.kind],
  ["model", "Model", row => row.model ?? row.best ?? ""],
  ["gpus", "GPUs", row => row.gpus === undefined ? "" : `${count(row.gpus)}${row.gpu ? ` ${row.gpu}` : ""}`],
  ["ttft_p95", "TTFT p95", row => row.ttft_p95 === undefined ? "" : seconds(row.ttft_p95)],
  ["tpot_p95", "TPOT p95", row => row.tpot_p95 === undefined ? "" : seconds(row.tpot_p95)],
  ["tokens_per_s", "Tokens/s", row => row.tokens_per_s === undefined ? "" : significant(row.tokens_per_s)],
  ["usd_per_million", "$ per M", row => row.usd_per_million === undefined ? "" : dollars(row.usd_per_million)],
  ["met", "Limits", row => row.met === true ? "met" : row.met === false ? "missed" : ""],
  ["modified", "Written", row => day(row.modified)],
];

function compared(a: Row, b: Row, key: keyof Row): number {
  const [x, y] = [a[key], b[key]];
  if (x === y) return a.name < b.name ? -1 : 1;
  if (x === undefined || x === null) return 1;
  if (y === undefined || y === null) return -1;
  return x < y ? -1 : 1;
}

export function HomePage({ started, look }: { started: Started[]; look: () => void }): JSX.Element {
  const home = useAnswer(() => ask<Home>("/api/home"), []);
  const over = started.filter(each => each.state !== "running").length;
  const results = useAnswer(() => ask<Row[]>("/api/runs"), [over]);
  const running = started.filter(each => each.state === "running");
  const scenarios = useMemo(() => home.value && <Scenarios home={home.value} look={look} />, [home.value]);
  const table = useMemo(() => results.value && <Results rows={results.value} reload={results.reload} />, [results.value]); // not drawn again with each look at runs
  return <>
    <Title text="Scenarios and results"><p class="lede">{home.value?.folder}</p></Title>
    <Errors lines={[...home.errors, ...results.errors]} />
    {running.length > 0 && <section><h2>Under way</h2>{running.map(each => <Progress key={each.number} run={each} look={look} />)}</section>}
    {scenarios}
    {table}
  </>;
}

function Scenarios({ home, look }: { home: Home; look: () => void }): JSX.Element {
  const [errors, setErrors] = useState<string[]>([]);
  const run = (name: string) => {
    start(name).then(found => { look(); location.hash = `#/started/${found.number}`; }, problem => setErrors(linesOf(problem)));
  };
  return <section><h2>Scenarios</h2>
    <Errors lines={errors} />
    {home.scenarios.length === 0 && <p>This folder has no scenario yet. Begin with one of these:</p>}
    <ul class="scenarios">{home.scenarios.map(({ name, kind }) => <li key={name}>
      <a class="name" href={`#/edit/${at(name)}`}>{name}</a>
      <span class="kind">{KINDS[kind] ?? ""}</span>
      <span class="buttons">{kind === "serving" && <a class="button" href={`#/whatif/${at(name)}`} aria-label={`What if: ${name}`}>What if</a>}
        {kind !== "learning" && <button onClick={() => run(name)} aria-label={`Run ${name}`}>Run</button>}</span>
    </li>)}</ul>
    <p class="starters">New: {Object.entries(home.starters).map(([key, words]) => <a key={key} href={`#/edit/new:${key}`}>{words}</a>)}</p>
  </section>;
}

function Results({ rows, reload }: { rows: Row[]; reload: () => void }): JSX.Element {
  const [words, setWords] = useState("");
  const [order, setOrder] = useState<[keyof Row, boolean]>(["modified", true]);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [asking, setAsking] = useState(false);
  const [errors, setErrors] = useState<string[]>([]);
  useEffect(() => setChosen(old => { const kept = [...old].filter(name => rows.some(row => row.name === name)); return kept.length === old.size ? old : new Set(kept); }), [rows]);
  const shown = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row: Row) => [row.name, row.scenario, ...COLUMNS.map(([, , show]) => show(row))].join(" ").toLowerCase();
    const [key, down] = order;
    const found = wanted.length ? rows.filter(row => { const all = text(row); return wanted.every(word => all.includes(word)); }) : rows.slice();
    return found.sort((a, b) => down ? compared(b, a, key) : compared(a, b, key));
  }, [rows, words, order]);
  const remove = () => {
    setAsking(false);
    ask("/api/delete", { names: [...chosen] }).then(reload, problem => { setErrors(linesOf(problem)); reload(); });
  };
  const toggle = (name: string) => setChosen(old => { const next = new Set(old); if (!next.delete(name)) next.add(name); return next; });
  const head = (key: keyof Row, title: string) => {
    const sorted = order[0] === key;
    return <th scope="col" key={key} aria-sort={sorted ? (order[1] ? "descending" : "ascending") : "none"}>
      <button class="sort" onClick={() => setOrder([key, sorted ? !order[1] : false])}>{title}<span aria-hidden="true">{sorted ? (order[1] ? " ↓" : " ↑") : ""}</span></button></th>;
  };
  return <section id="results"><h2>Results</h2>
    <Errors lines={errors} />
    <div class="tools">
      <label>Search <input type="search" value={words} onInput={event => setWords(event.currentTarget.value)} /></label>
      <span role="status">{shown.length === rows.length ? `${count(rows.length)} results` : `${count(shown.length)} of ${count(rows.length)} results`}</span>
      <span class="buttons">
        <a class="button" aria-disabled={chosen.size < 2} {...(chosen.size < 2 ? {} : { href: `#/compare/${at(...chosen)}` })} role="link">Compare{chosen.size > 1 ? ` ${chosen.size}` : ""}</a>
        <button disabled={!chosen.size} onClick={() => setAsking(true)}>Delete{chosen.size ? ` ${chosen.size}` : ""}</button>
      </span>
    </div>
    {asking && <Question text={chosen.size === 1 ? `Delete ${[...chosen][0]} with all its files?` : `Delete ${chosen.size} results with all their files?`} yes="Delete" onYes={remove} onNo={() => setAsking(false)} />}
    {rows.length === 0 ? <p>No results yet. Run a scenario.</p> : <div class="scroll tall" tabIndex={0} role="region" aria-label="Results"><table>
      <thead><tr><th scope="col"><span class="sr">Chosen</span></th>{head("name", "Result")}{COLUMNS.map(([key, title]) => head(key, title))}</tr></thead>
      <tbody>{shown.map(row => <tr key={row.name}>
        <td><input type="checkbox" checked={chosen.has(row.name)} onChange={() => toggle(row.name)} aria-label={`Choose ${row.name}`} /></td>
        <th scope="row">{row.kind === "unknown" ? <span title={row.problem}>{row.name}</span> : <a href={`#/result/${at(row.name)}`}>{row.name}</a>}</th>
        {COLUMNS.map(([key, , show]) => <td key={key} class={key === "met" ? (row.met ? "good" : "bad") : ""}>{show(row)}</td>)}
      </tr>)}</tbody>
    </table></div>}
  </section>;
}
