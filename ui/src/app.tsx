// The frame of the page: which view is shown, whether the server answers, and runs under way.
import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ComparePage } from "./compare";
import { EditPage } from "./edit";
import { HomePage } from "./home";
import { ResultPage } from "./result";
import { ask, onConnection, type Connection, type Started } from "./server";
import { StartedPage, Tray } from "./started";
import { WhatIfPage } from "./whatif";

const HEARTBEAT = 2000, BUSY = 400;

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** Runs that this server has started. Asking for them is also how the page notices that the server is gone. */
function useStarted(): [Started[], () => void] {
  const [started, setStarted] = useState<Started[]>([]);
  const again = useRef<() => void>(() => {});
  useEffect(() => {
    let timer = 0, over = false;
    const look = async () => {
      clearTimeout(timer);
      let busy = false;
      try {
        const found = await ask<Started[]>("/api/started");
        busy = found.some(each => each.state === "running");
        if (!over) setStarted(found);
      } catch { /* the banner says it */ }
      if (!over) timer = setTimeout(look, busy ? BUSY : HEARTBEAT);
    };
    again.current = look;
    void look();
    return () => { over = true; clearTimeout(timer); };
  }, []);
  return [started, () => again.current()];
}

function Banner({ now }: { now: Connection }): JSX.Element | null {
  if (now === "connected") return null;
  return <div class="banner" role="alert">{now === "gone"
    ? "The server of this page is gone. Runs under way finish on their own, and their results will be listed. Start steelyard ui again in the same folder: this page reconnects by itself."
    : "The server has another token now. Open the address that steelyard ui has printed."}</div>;
}

function App(): JSX.Element {
  const [view = "", ...rest] = useRoute();
  const [connection, setConnection] = useState<Connection>("connected");
  const [started, look] = useStarted();
  const main = useRef<HTMLElement>(null);
  const key = [view, ...rest].join("/");
  useEffect(() => onConnection(setConnection), []);
  useEffect(() => {
    if (key) main.current?.querySelector<HTMLElement>("h1")?.focus();
    scrollTo(0, 0);
  }, [key]);
  const name = rest[0] ?? "";
  const page = view === "edit" ? <EditPage key={key} name={name} look={look} />
    : view === "whatif" ? <WhatIfPage key={key} name={name} />
    : view === "result" ? <ResultPage key={key} name={name} started={started} look={look} />
    : view === "compare" ? <ComparePage key={key} names={rest} />
    : view === "started" ? <StartedPage key={key} number={Number(name)} started={started} look={look} />
    : <HomePage started={started} look={look} />;
  return <>
    <a class="skip" href="#main" onClick={event => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/">
        <svg viewBox="0 0 48 32" width="38" height="25" aria-hidden="true"><path d="M3 15 45 7M15 2v10.5M15 13v8" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" /><path d="M9 21h12l-2.4 6.5h-7.2z" fill="currentColor" /><circle class="weight" cx="38" cy="12.5" r="4" /></svg>
        Steelyard</a>
      <Tray started={started} />
    </header>
    <Banner now={connection} />
    <main id="main" ref={main} tabIndex={-1} data-connection={connection}>{page}</main>
  </>;
}

render(<App />, document.getElementById("page")!);
