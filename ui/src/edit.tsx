// A scenario: edited with completion, checked as it is typed, saved and run.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Editor, Knowledge, Problem } from "./editor";
import { Errors, Title } from "./parts";
import { ask, at, linesOf } from "./server";
import { start } from "./started";

const CHECK_AFTER = 120, ENGINES_AFTER = 600; // ms without typing
const WORDS: Record<string, string> = { serving: "serving", search: "search", posttrain: "post-training", learning: "live" };
interface Opened { text: string; version: string; name: string }

export function EditPage({ name, look }: { name: string; look: () => void }): JSX.Element {
  const [opened, setOpened] = useState<Opened | null>(null);
  const [errors, setErrors] = useState<string[]>([]);
  useEffect(() => {
    const starter = name.startsWith("new:") ? name.slice(4) : null;
    const load = starter === null ? ask<Opened>(`/api/scenarios/${at(name)}`)
      : ask<{ text: string }>(`/api/starters/${at(starter)}`).then(({ text }) => ({ text, version: "", name: `${starter}.yaml` }));
    load.then(setOpened, problem => setErrors(linesOf(problem)));
  }, []);
  if (!opened) return <><Title text={name} /><Errors lines={errors} /></>;
  return <Editing opened={opened} look={look} />;
}

function Editing({ opened, look }: { opened: Opened; look: () => void }): JSX.Element {
  const place = useRef<HTMLDivElement>(null), editor = useRef<Editor | null>(null);
  const kind = useRef("serving"), version = useRef(opened.version), saved = useRef(opened.version ? opened.text : "");
  const [name, setName] = useState(opened.name), nameNow = useRef(opened.name);
  const [problems, setProblems] = useState<Problem[] | null>(null);
  const [shownKind, setShownKind] = useState("");
  const [errors, setErrors] = useState<string[]>([]); // of saving and starting
  const [unchecked, setUnchecked] = useState<string[]>([]); // why the text could not be checked
  const [dirty, setDirty] = useState(!opened.version);
  const [note, setNote] = useState("");
  const round = useRef(0), timer = useRef(0), later = useRef(0);
  nameNow.current = name;

  const show = (found: Problem[]) => { setProblems(found); editor.current?.show(found); };
  const check = async () => {
    const own = ++round.current;
    const body = { name: nameNow.current, text: editor.current?.text() ?? opened.text };
    try {
      const found = await ask<{ kind: string; problems: Problem[] }>("/api/check", body);
      if (own !== round.current) return;
      kind.current = found.kind; setShownKind(found.kind); show(found.problems); setUnchecked([]);
      clearTimeout(later.current);
      if (!found.problems.length) later.current = setTimeout(async () => {
        const more = await ask<{ problems: Problem[] }>("/api/check/engines", body).catch(() => null);
        if (more && own === round.current) show(more.problems);
      }, ENGINES_AFTER);
    } catch (problem) { if (own === round.current) setUnchecked(linesOf(problem)); }
  };
  const changed = () => {
    setDirty((editor.current?.text() ?? "") !== saved.current); setNote("");
    clearTimeout(timer.current);
    timer.current = setTimeout(check, CHECK_AFTER);
  };
  const save = async (): Promise<boolean> => {
    const text = editor.current!.text(), target = nameNow.current;
    try {
      const found = await ask<{ version: string }>(`/api/scenarios/${at(target)}`, { name: target, text, version: target === opened.name ? version.current : "" }, "PUT");
      version.current = found.version; saved.current = text; opened.name = target;
      setDirty(editor.current?.text() !== text); setErrors([]); setNote("Saved.");
      history.replaceState(null, "", `#/edit/${at(target)}`);
      return true;
    } catch (problem) { setErrors(linesOf(problem)); return false; }
  };
  const run = async () => {
    if ((dirty || !version.current) && !await save()) return;
    try {
      const found = await start(nameNow.current);
      look(); location.hash = `#/started/${found.number}`;
    } catch (problem) { setErrors(linesOf(problem)); }
  };
  useEffect(() => {
    let over = false;
    void Promise.all([import("./editor"), ask<Knowledge>("/api/knowledge")]).then(([{ makeEditor }, knowledge]) => {
      if (over || !place.current) return;
      place.current.textContent = "";
      editor.current = makeEditor(place.current, opened.text, knowledge, () => kind.current, changed, () => void save());
      void check();
    }, problem => setErrors(linesOf(problem)));
    return () => { over = true; clearTimeout(timer.current); clearTimeout(later.current); editor.current?.destroy(); };
  }, []);
  useEffect(() => {
    const leaving = (event: BeforeUnloadEvent) => { if (dirty) event.preventDefault(); };
    addEventListener("beforeunload", leaving);
    return () => removeEventListener("beforeunload", leaving);
  }, [dirty]);
  const wrong = problems !== null && problems.length > 0;
  return <>
    <Title text={opened.version ? opened.name : "New scenario"} />
    <div class="tools">
      <label>Name <input value={name} onInput={event => { setName(event.currentTarget.value); setDirty(true); changed(); }} spellcheck={false} /></label>
      <span class="buttons">
        <button onClick={() => void save()} disabled={!dirty}>Save</button>
        <button class="main" onClick={() => void run()} disabled={wrong || shownKind === "learning"}>Run</button>
        {shownKind === "serving" && !dirty && !wrong && <a class="button" href={`#/whatif/${at(opened.name)}`}>What if</a>}
      </span>
      <span role="status">{note}{dirty && " Not saved."}</span>
    </div>
    <Errors lines={[...errors, ...unchecked]} />
    <div class="editing">
      <div class="editor" ref={place} data-ready={problems !== null}><pre>{opened.text}</pre></div>
      <aside aria-label="Check">
        <h2>{problems === null ? "Checking" : wrong ? `${problems.length} ${problems.length === 1 ? "problem" : "problems"}` : "No problems"}</h2>
        <p class="note">{WORDS[shownKind] ?? ""} scenario{shownKind === "learning" && ", started with steelyard control in a terminal"}</p>
        <div role="status"><ol class="problems">{problems?.map(each => <li key={`${each.line}${each.message}`}>
          <button class="quiet" onClick={() => editor.current?.goTo(each.line)}>Line {each.line}</button> {each.message}</li>)}</ol></div>
        <p class="note">Ctrl+Space completes keys, GPUs and models. Escape, then Tab leaves the editor.</p>
      </aside>
    </div>
  </>;
}
