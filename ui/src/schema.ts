// Finds the place of the cursor in a scenario's YAML, and what its JSON Schema allows there.

export interface Schema {
  $ref?: string; properties?: Record<string, Schema>; anyOf?: Schema[]; oneOf?: Schema[]; items?: Schema; prefixItems?: Schema[];
  enum?: unknown[]; const?: unknown; description?: string; type?: string; default?: unknown; $defs?: Record<string, Schema>;
  additionalProperties?: Schema | boolean; minimum?: number; maximum?: number; exclusiveMinimum?: number; exclusiveMaximum?: number;
}
export interface Place { path: string[]; inValue: boolean; word: string; from: number; siblings: string[] }

const KEY = /^(\s*)((?:- +)*)("[^"]*"|'[^']*'|[^\s#"'{}[\],:][^#{}[\],:]*?)\s*:(?=\s|$)/;

/** The keys above a position, and what is being written there. A small reader: it has to work on unfinished text. */
export function placeAt(text: string, at: number): Place {
  const before = text.slice(0, at);
  const lines = before.split("\n");
  const current = lines.at(-1)!;
  const word = /[\w.+-]*$/.exec(current)![0];
  const stack: { indent: number; key: string }[] = [];
  let flow: Frame[] = [];
  lines.forEach((line, i) => {
    const last = i === lines.length - 1;
    const bare = withoutComment(line);
    if (flow.length) { flow = scan(bare, flow); return; }
    if (!bare.trim() && !last) return;
    const found = KEY.exec(bare);
    const dashes = /^(\s*)((?:- +|-$)*)/.exec(bare)!;
    const indent = dashes[1]!.length + dashes[2]!.length;
    while (stack.length && stack.at(-1)!.indent >= (found || dashes[2] ? dashes[1]!.length + (dashes[2] ? 1 : 0) : indent)) stack.pop();
    if (dashes[2]) while (stack.length && stack.at(-1)!.indent >= indent) stack.pop();
    if (found) {
      stack.push({ indent, key: unquoted(found[3]!) });
      flow = scan(bare.slice(found[0].length), []);
    } else flow = scan(bare.slice(indent), []);
  });
  const above = stack.map(each => each.key);
  const inside = flow.flatMap(frame => frame.key === null ? [] : [frame.key]);
  const open = flow.at(-1);
  let path = [...above, ...inside], inValue: boolean;
  if (open) {
    inValue = open.kind === "[" || open.key !== null;
  } else {
    const found = KEY.exec(current);
    inValue = found !== null;
    if (!found && /^\s*- *[\w.+-]*$/.test(current)) inValue = false;
  }
  const siblings = open ? open.keys : siblingsOf(text, lines.length - 1, current);
  return { path, inValue, word, from: at - word.length, siblings };
}

interface Frame { kind: string; key: string | null; keys: string[] }

/** Follows braces and brackets of flow style through a line. */
function scan(line: string, frames: Frame[]): Frame[] {
  const open = frames.map(each => ({ ...each, keys: [...each.keys] }));
  let piece = "";
  for (const mark of line) {
    const top = open.at(-1);
    if (mark === "{" || mark === "[") { open.push({ kind: mark, key: null, keys: [] }); piece = ""; }
    else if (mark === "}" || mark === "]") { open.pop(); piece = ""; }
    else if (mark === "," && top) { top.key = null; piece = ""; }
    else if (mark === ":" && top?.kind === "{" && top.key === null) { top.key = unquoted(piece.trim()); top.keys.push(top.key); piece = ""; }
    else piece += mark;
  }
  return open;
}

function siblingsOf(text: string, row: number, current: string): string[] {
  const lines = text.split("\n"), indent = /^(\s*)((?:- +)*)/.exec(current)![0].length, found: string[] = [];
  const collect = (step: number) => {
    for (let i = row + step; i >= 0 && i < lines.length; i += step) {
      const line = lines[i]!, key = KEY.exec(line);
      if (!line.trim()) continue;
      const own = /^(\s*)((?:- +)*)/.exec(line)![0].length;
      if (own < indent) return;
      if (own === indent && key) found.push(unquoted(key[3]!));
      if (own === indent && key?.[2]) return;
    }
  };
  if (!/^\s*- /.test(current)) collect(-1);
  collect(1);
  return found;
}

const unquoted = (text: string): string => text.replace(/^["']|["']$/g, "");
const withoutComment = (line: string): string => line.replace(/(^|\s)#.*$/, "$1");

/** All schemas that could hold at a path: references followed, branches spread out, items of lists passed through. */
export function schemasAt(root: Schema, path: string[]): Schema[] {
  let here = spread(root, root);
  for (const key of path) {
    here = here.flatMap(each => throughLists(root, each)).flatMap(each => {
      const next = each.properties?.[key] ?? (typeof each.additionalProperties === "object" ? each.additionalProperties : undefined);
      return next ? spread(root, { ...next }) : [];
    });
  }
  return here;
}

function spread(root: Schema, schema: Schema, depth = 0): Schema[] {
  if (depth > 8) return [];
  if (schema.$ref) {
    const target = schema.$ref.replace("#/$defs/", "");
    const found = root.$defs?.[target];
    const told = schema.description ? { description: schema.description } : {};
    return found ? spread(root, { ...found, ...told }, depth + 1) : [];
  }
  const branches = [...schema.anyOf ?? [], ...schema.oneOf ?? []];
  return branches.length ? branches.flatMap(each => spread(root, each, depth + 1)) : [schema];
}

export function throughLists(root: Schema, schema: Schema, depth = 0): Schema[] {
  if (schema.items && depth < 4) return spread(root, schema.items).flatMap(each => throughLists(root, each, depth + 1));
  return [schema];
}

export interface KeyInfo { key: string; description: string; mapping: boolean }

export function keysAt(root: Schema, path: string[]): KeyInfo[] {
  const found = new Map<string, KeyInfo>();
  for (const schema of schemasAt(root, path).flatMap(each => throughLists(root, each)))
    for (const [key, value] of Object.entries(schema.properties ?? {})) {
      const kinds = spread(root, value);
      if (!found.has(key)) found.set(key, { key, description: describe(value, kinds), mapping: kinds.length > 0 && kinds.every(each => each.properties) });
    }
  return [...found.values()];
}

export function valuesAt(root: Schema, path: string[]): string[] {
  const found = new Set<string>();
  for (const schema of schemasAt(root, path).flatMap(each => throughLists(root, each))) {
    for (const value of schema.enum ?? (schema.const === undefined ? [] : [schema.const])) found.add(String(value));
    if (schema.type === "boolean") { found.add("true"); found.add("false"); }
  }
  return [...found];
}

function describe(value: Schema, kinds: Schema[]): string {
  const text = value.description ?? kinds.find(each => each.description)?.description ?? "";
  const plain = value.default === undefined || value.default === null || typeof value.default === "object" ? "" : ` Default: ${String(value.default)}.`;
  return text + plain;
}

export function descriptionAt(root: Schema, path: string[]): string {
  const key = path.at(-1);
  return keysAt(root, path.slice(0, -1)).find(each => each.key === key)?.description ?? "";
}
