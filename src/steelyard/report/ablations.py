"""The page of ablations, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from statistics import mean, median

from steelyard.report.fidelity import table
from steelyard.report.markdown import code, plain
from steelyard.report.validation import signed_percent
from steelyard.validate.ablations import ABLATIONS, EVERYTHING, AblatedRun
from steelyard.validate.compare import LATENCIES
from steelyard.words import UNKNOWN

_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_KINDS = (EVERYTHING, *(each.mechanism for each in ABLATIONS))
_ABOUT = (
    "Errors of means, with the whole model and with one mechanism left out of it: simulated over measured, less one.",
    "The engines had all of these mechanisms; only the model is changed. Host times and operator times are the same,",
    "the defaults of the [fidelity page](fidelity.md).",
)
_WITHOUT = (
    "- without **padding**: a step that replays a CUDA graph takes as long as its own tokens would, not those of",
    "  the captured size. This matters where time depends on rows: in steps with prompts, and with routed experts.",
    "  A small batch of decodes reads the same weights, padded or not.",
    "- without **CUDA graphs**: every step is launched kernel by kernel, and none is padded. A fresh engine with",
    "  routed experts then compiles kernels in more steps, which makes means huge; medians are fairer.",
    "- without **asynchronous scheduling**: the host prepares and launches a step when the one before has returned.",
    "  This matters as much as the host's time does beside the GPU's: most for small models and small batches. First",
    "  tokens of lone requests come sooner, since the host does not launch the next step before it looks at them.",
    "- without **context of chunks**: attention of a chunk sees only the chunk. This matters for long prompts that are",
    "  split over steps or begin in the prefix cache; a prompt that fits one step has no context at all.",
)


def ablation_page(runs: Sequence[AblatedRun], command: str) -> str:
    """The whole page."""
    return "\n".join(_lines(runs, command)).rstrip() + "\n"


def _lines(runs: Sequence[AblatedRun], command: str) -> Iterator[str]:
    yield "# Ablations"
    yield ""
    yield f"Made by {code(command)} (steelyard {version('steelyard')})."
    yield ""
    yield from _ABOUT
    yield ""
    yield from _WITHOUT
    yield ""
    yield from _padding([run.padding for run in runs])
    yield ""
    for metric in LATENCIES:
        yield f"## {_SHORT[metric]}"
        yield ""
        yield from _errors(runs, metric)
    yield "## How much worse"
    yield ""
    yield "Mean absolute error over all runs without a mechanism, over that with everything, less one. Beside it how"
    yield "many runs became worse and how many better, by more than half a percentage point."
    yield ""
    yield from table(["without", *_SHORT.values()], _worse(runs))


def _padding(added: Sequence[float]) -> Iterator[str]:
    """How much there is to lose by the first one."""
    yield "The Frontier paper (arXiv 2605.21312) reports errors of 23 to 46 % where graph padding is ignored, with"
    yield f"vLLM 0.10.2 on H800. In these runs padding adds {_percent(median(added))} of rows in the median run, and at"
    yield f"most {_percent(max(added))}."


def _errors(runs: Sequence[AblatedRun], metric: str) -> Iterator[str]:
    rows: list[list[str]] = [
        [plain(run.name), *(signed_percent(run.errors[kind][metric]) for kind in _KINDS)] for run in runs
    ]
    for name, over in (("mean of absolute errors", mean), ("median of absolute errors", median)):
        rows.append([name, *(_percent(_over(runs, kind, metric, over)) for kind in _KINDS)])
    head = ["run", EVERYTHING, *(f"without {each.mechanism}" for each in ABLATIONS)]
    yield from table(head, iter(rows))


def _worse(runs: Sequence[AblatedRun]) -> Iterator[list[str]]:
    for each in ABLATIONS:
        row = [each.mechanism]
        for metric in LATENCIES:
            whole, without = (_over(runs, kind, metric, mean) for kind in (EVERYTHING, each.mechanism))
            pairs = [
                (abs(without_it) - abs(with_it))
                for run in runs
                if (with_it := run.errors[EVERYTHING][metric]) is not None
                and (without_it := run.errors[each.mechanism][metric]) is not None
            ]
            worse, better = sum(more > 0.005 for more in pairs), sum(more < -0.005 for more in pairs)
            changed = UNKNOWN if not whole or without is None else signed_percent(without / whole - 1)
            row.append(f"{changed} ({worse} worse, {better} better of {len(pairs)})")
        yield row


def _over(runs: Sequence[AblatedRun], kind: str, metric: str, over: Callable[[Sequence[float]], float]) -> float | None:
    known = [abs(error) for run in runs if (error := run.errors[kind][metric]) is not None]
    return over(known) if known else None


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}".replace("%", " %")
