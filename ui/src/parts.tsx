// Small parts that several views share.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { linesOf } from "./server";

export function useAnswer<T>(load: () => Promise<T>, keys: unknown[]): { value: T | null; errors: string[]; reload: () => void } {
  const [value, setValue] = useState<T | null>(null);
  const [errors, setErrors] = useState<string[]>([]);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let current = true;
    load().then(found => { if (current) { setValue(found); setErrors([]); } }, problem => { if (current) setErrors(linesOf(problem)); });
    return () => { current = false; };
  }, [...keys, round]);
  return { value, errors, reload: () => setRound(each => each + 1) };
}

export function Errors({ lines }: { lines: string[] }): JSX.Element | null {
  return lines.length ? <div class="errors" role="alert">{lines.map(line => <p key={line}>{line}</p>)}</div> : null;
}

export function Title({ text, children }: { text: string; children?: ComponentChildren }): JSX.Element {
  useEffect(() => { document.title = `${text} · Steelyard`; }, [text]);
  return <div class="title"><h1 tabIndex={-1}>{text}</h1>{children}</div>;
}

/** A question that has to be answered. Escape means no. */
export function Question({ text, yes, onYes, onNo }: { text: string; yes: string; onYes: () => void; onNo: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => { dialog.current?.showModal(); }, []);
  return <dialog ref={dialog} aria-labelledby="question" onCancel={event => { event.preventDefault(); onNo(); }}>
    <p id="question">{text}</p>
    <div class="buttons"><button onClick={onNo}>Keep</button><button class="danger" onClick={onYes}>{yes}</button></div>
  </dialog>;
}

export function Card({ title, figure, note, state }: { title: string; figure: string; note?: string; state?: boolean | null }): JSX.Element {
  return <div class={`card ${state === true ? "good" : state === false ? "bad" : ""}`}><h3>{title}</h3><p class="figure">{figure}</p>{note && <p class="note">{note}</p>}</div>;
}

export function Table({ head, rows, label, tall }: { head: string[]; rows: ComponentChildren[][]; label: string; tall?: boolean }): JSX.Element {
  return <div class={`scroll${tall ? " tall" : ""}`} tabIndex={0} role="region" aria-label={label}><table>
    <thead><tr>{head.map(each => <th scope="col" key={each}>{each}</th>)}</tr></thead>
    <tbody>{rows.map((row, i) => <tr key={i}>{row.map((each, j) => j ? <td key={j}>{each}</td> : <th scope="row" key={j}>{each}</th>)}</tr>)}</tbody>
  </table></div>;
}

export function flat(value: unknown, prefix = ""): [string, unknown][] {
  if (value === null || typeof value !== "object") return [[prefix, value]];
  return Object.entries(value).flatMap(([key, each]) => flat(each, prefix ? `${prefix}.${key}` : key));
}

export function Downloads({ run, files }: { run: string; files: string[] }): JSX.Element | null {
  if (!files.length) return null;
  const tables = files.filter(each => each.endsWith(".parquet")).map(each => each.replace(".parquet", ""));
  const folder = `/api/runs/${encodeURIComponent(run)}`;
  return <section><h2>Files</h2><ul class="files">
    {files.map(each => <li key={each}><a href={`${folder}/files/${encodeURIComponent(each)}`} download>{each}</a></li>)}
    {tables.map(each => <li key={each}><a href={`${folder}/csv/${each}`} download>{each}.csv</a></li>)}
  </ul></section>;
}

export function ScenarioText({ text }: { text: string }): JSX.Element | null {
  const [copied, setCopied] = useState(false);
  if (!text) return null;
  const copy = () => { void navigator.clipboard.writeText(text).then(() => setCopied(true)); };
  return <section><h2>Scenario</h2><div class="copyable"><button class="quiet" onClick={copy}>{copied ? "Copied" : "Copy"}</button><pre tabIndex={0} aria-label="Scenario">{text}</pre></div></section>;
}
