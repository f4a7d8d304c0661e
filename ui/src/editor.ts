// The scenario editor: CodeMirror with completion, key descriptions, and the server's messages at their lines.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { descriptionAt, keysAt, placeAt, valuesAt, type Schema } from "./schema";

export interface Knowledge { schemas: Record<string, Schema>; gpus: string[]; models: Record<string, string> }
export interface Problem { line: number; key: string; message: string }
export interface Editor { text(): string; show(problems: Problem[]): void; goTo(line: number): void; destroy(): void }

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--brand)", fontWeight: "600" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: [tags.number, tags.bool, tags.keyword], color: "var(--hue2)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.punctuation, tags.separator, tags.bracket], color: "var(--soft)" },
]);
const look = EditorView.theme({
  "&": { fontSize: "14px", backgroundColor: "var(--card)", color: "var(--ink)" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--ink)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--soft)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--active)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--select) !important" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "6px", maxWidth: "34em" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--brand)", color: "var(--paper)" },
  ".cm-completionInfo, .cm-tip": { padding: "6px 10px", maxWidth: "34em", lineHeight: "1.4" },
  ".cm-panels": { backgroundColor: "var(--card)", color: "var(--ink)" },
});

export function makeEditor(parent: HTMLElement, text: string, knowledge: Knowledge, kind: () => string, onChange: () => void, onSave: () => void): Editor {
  const schema = (): Schema => knowledge.schemas[kind()] ?? {};
  const complete = (context: CompletionContext): CompletionResult | null => {
    const place = placeAt(context.state.doc.toString(), context.pos);
    if (!place.word && !context.explicit && !/[{,[:] ?$/.test(context.state.sliceDoc(0, context.pos))) return null;
    if (place.inValue) {
      const values = [...valuesAt(schema(), place.path), ...named(knowledge, place.path.at(-1))];
      return values.length ? { from: place.from, options: values.map(label => ({ label, type: "enum", info: knowledge.models[label] ?? "" })), validFor: /^[\w.+-]*$/ } : null;
    }
    const keys = keysAt(schema(), place.path).filter(each => !place.siblings.includes(each.key));
    return keys.length ? { from: place.from, options: keys.map(each => ({ label: each.key, apply: `${each.key}: `, type: "property", info: each.description })), validFor: /^\w*$/ } : null;
  };
  const tip = hoverTooltip((view, at) => {
    const word = view.state.wordAt(at);
    if (!word) return null;
    const line = view.state.doc.lineAt(at), rest = view.state.sliceDoc(word.to, line.to);
    if (!/^\s*:/.test(rest)) return null;
    const place = placeAt(view.state.doc.toString(), word.to);
    const key = view.state.sliceDoc(word.from, word.to);
    const told = descriptionAt(schema(), [...place.path.at(-1) === key ? place.path.slice(0, -1) : place.path, key]);
    if (!told) return null;
    return { pos: word.from, end: word.to, above: true, create: () => { const dom = document.createElement("div"); dom.className = "cm-tip"; dom.textContent = told; return { dom }; } };
  });
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        EditorView.cspNonce.of(nonce), lineNumbers(), history(), drawSelection(), highlightActiveLine(), highlightSelectionMatches(),
        closeBrackets(), yaml(), indentUnit.of("  "), syntaxHighlighting(colours), look, tip, lintGutter(), EditorView.lineWrapping,
        autocompletion({ override: [complete], activateOnTyping: true, icons: false }),
        keymap.of([{ key: "Mod-s", run: () => { onSave(); return true; } }, ...closeBracketsKeymap, ...completionKeymap, ...searchKeymap, ...lintKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.contentAttributes.of({ "aria-label": "Scenario" }),
        EditorView.updateListener.of(update => { if (update.docChanged) onChange(); }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    show(problems) {
      const doc = view.state.doc;
      view.dispatch(setDiagnostics(view.state, problems.map(({ line, key, message }) => {
        const found = doc.line(Math.min(Math.max(1, line), doc.lines));
        const last = key.replace(/\[\d+\]/g, "").split(".").at(-1) ?? "";
        const inLine = last ? found.text.search(new RegExp(`(?<![\\w])${last.replace(/[^\w]/g, "\\$&")}(?=\\s*:)`)) : -1;
        const from = found.from + (inLine >= 0 ? inLine : found.text.length - found.text.trimStart().length);
        return { from, to: inLine >= 0 ? from + last.length : Math.max(found.to, from), severity: "error" as const, message };
      })));
    },
    goTo(line) {
      const found = view.state.doc.line(Math.min(Math.max(1, line), view.state.doc.lines));
      view.dispatch({ selection: { anchor: found.to }, scrollIntoView: true });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

const named = (knowledge: Knowledge, key: string | undefined): string[] =>
  key === "gpu" ? knowledge.gpus : key === "model" ? Object.keys(knowledge.models) : [];
