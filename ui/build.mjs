// Bundles the page into src/steelyard/ui/static, with a manifest of the sources that it was built from.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const out = "../src/steelyard/ui/static";
const files = ["package.json", "package-lock.json", "tsconfig.json", "build.mjs", "index.html"];
const sources = [...files, ...readdirSync("src").sort().map(name => `src/${name}`)];

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  entryPoints: ["src/app.tsx", "src/style.css"],
  outdir: out,
  bundle: true,
  minify: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  chunkNames: "[name]-[hash]",
  legalComments: "eof",
  logLevel: "warning",
});
writeFileSync(join(out, "index.html"), readFileSync("index.html"));
const digests = sources.map(name => [name, createHash("sha256").update(readFileSync(name)).digest("hex")]);
writeFileSync(join(out, "manifest.json"), JSON.stringify(Object.fromEntries(digests), null, 1) + "\n");
