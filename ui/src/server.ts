// What the server answers. Every request goes to the page's own server.

export class Refused extends Error {
  constructor(readonly lines: string[], readonly status: number) { super(lines.join("\n")); }
}

export type Connection = "connected" | "gone" | "refused";
let connection: Connection = "connected";
const listeners = new Set<(now: Connection) => void>();

export function onConnection(listener: (now: Connection) => void): () => void {
  listeners.add(listener);
  return () => { listeners.delete(listener); };
}

function connectionIs(now: Connection): void {
  if (now === connection) return;
  connection = now;
  listeners.forEach(listener => listener(now));
}

export async function request(path: string, body?: unknown, method = body === undefined ? "GET" : "POST", signal?: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method, signal: signal ?? null, credentials: "same-origin",
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
    });
  } catch (problem) {
    if (signal?.aborted) throw problem;
    connectionIs("gone");
    throw new Refused(["The server does not answer."], 0);
  }
  connectionIs(answer.status === 403 ? "refused" : "connected");
  if (!answer.ok) {
    const told = await answer.json().catch(() => null) as { errors?: string[] } | null;
    throw new Refused(told?.errors ?? [`The server answered ${answer.status}.`], answer.status);
  }
  return answer;
}

export async function ask<T>(path: string, body?: unknown, method?: string): Promise<T> {
  return await (await request(path, body, method)).json() as T;
}

export async function* lines<T>(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<T> {
  const reader = (await request(path, body, "POST", signal)).body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const whole = (rest + (value ?? "")).split("\n");
    rest = whole.pop() ?? "";
    for (const line of whole) if (line) yield JSON.parse(line) as T;
    if (done) return;
  }
}

export const linesOf = (problem: unknown): string[] => problem instanceof Refused ? problem.lines : [String(problem)];
export const at = (...parts: string[]): string => parts.map(encodeURIComponent).join("/");

export interface Row {
  name: string; kind: string; modified: number; scenario?: string; problem?: string; model?: string; gpu?: string;
  gpus?: number; requests?: number; ttft_p95?: number | null; tpot_p95?: number | null; tokens_per_s?: number;
  usd_per_million?: number | null; met?: boolean | null; steps?: number; step_seconds?: number; best?: string; candidates?: number;
}
export interface Started {
  number: number; scenario: string; command: string; run: string; state: "running" | "done" | "failed" | "cancelled";
  what: string; done: number; total: number; seconds: number; errors: string[]; hasResult: boolean; cancelling: boolean;
}
export interface Home {
  folder: string; version: string; scenarios: { name: string; kind: string; modified: number }[]; starters: Record<string, string>;
}
