// Numbers as people read them: the same words as in reports.

export const UNKNOWN = "–";
type Maybe = number | null | undefined;
const known = (value: Maybe): value is number => typeof value === "number" && Number.isFinite(value);

// Making a formatter takes far longer than using it.
const decimal = Array.from({ length: 13 }, (_, digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const moment = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export function significant(value: Maybe, digits = 3): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const rounded = Math.abs(value) < 10 ** digits ? Number(value.toPrecision(digits)) : value;
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return decimal[Math.min(decimals, 12)]!.format(rounded);
}
export const count = (value: Maybe): string => known(value) ? decimal[0]!.format(Math.round(value)) : UNKNOWN;

export function seconds(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  const size = Math.abs(Number(value.toPrecision(3)));
  const [scale, unit] = size >= 7200 ? [3600, "h"] as const : size >= 120 ? [60, "min"] as const
    : size >= 1 ? [1, "s"] as const : size >= 1e-3 ? [1e-3, "ms"] as const : [1e-6, "µs"] as const;
  return `${significant(value / scale)} ${unit}`;
}
export const percent = (value: Maybe): string =>
  !known(value) ? UNKNOWN : value > 0 && value < 0.001 ? "<0.1 %" : `${Math.round(value * 1000) / 10} %`;
export const dollars = (value: Maybe): string =>
  !known(value) ? UNKNOWN : value >= 1 || value === 0 ? `$${decimal[2]!.format(value)}` : `$${significant(value)}`;
export const brief = (value: number): string => {
  const [scale, letter] = ([[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const).find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))}${letter}`;
};
/** `TTFT p95` of the limit `ttft_p95`. */
export const limitName = (key: string): string => {
  const [metric = "", level = ""] = key.split("_");
  return metric === "e2e" ? `End to end ${level}` : `${metric === "attft" ? "aTTFT" : metric.toUpperCase()} ${level}`;
};
export const day = (stamp: number): string => moment.format(stamp * 1000);
export const plural = (value: number, noun: string): string => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
/** A tick: without zeros that say nothing. */
export const trimmed = (text: string): string => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "").replace(/^-?0 .*$/, "0");
