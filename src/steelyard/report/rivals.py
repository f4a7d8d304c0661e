"""The page about other systems: a table of settings for each, with where they are from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from steelyard.posttrain.compare_profiles import Profile
from steelyard.posttrain.compare_rivals import PROFILES
from steelyard.posttrain.compare_tuning import TRIAL_STEPS

_WORDS = {
    "late": "late samples (`admission.late`)",
    "concurrency": "samples at once, in batches (`admission.concurrency`)",
    "weighed": "`training.weighed`",
}


def rivals_page() -> str:
    """The page in Markdown."""
    return "\n".join([_INTRODUCTION, *(line for profile in PROFILES for line in _section(profile))])


def _section(profile: Profile) -> Iterator[str]:
    yield f"## {profile.name}\n"
    yield f"{profile.about}\n"
    yield "| setting | value | from |"
    yield "| --- | --- | --- |"
    for key, setting in profile.settings.items():
        values = ", ".join(map(_said, setting.values))
        values = f"best of {values}" if setting.open else values
        yield f"| {_WORDS.get(key, f'`{key}`')} | {values} | {setting.source} |"
    yield ""
    for head, text in (
        ("Its mechanism", profile.claim),
        ("Left out", profile.left_out),
        ("Better here than by its own code", profile.kinder),
    ):
        if text:
            yield f"- **{head}:** {text}"
    yield ""


def _said(value: Any) -> str:
    return "no limit" if value is None else f"`{str(value).lower()}`"


_INTRODUCTION = f"""# Other systems

Made by `python -m tools.rivals_page docs/rivals.md` from the profiles in `posttrain/compare_rivals*.py`, which
`steelyard compare` runs ([posttrain.md](posttrain.md)). Decisions are in our own implementation; links are to what they
were read from.

- **Settings** are keys of a post-training scenario. What a source leaves open is tuned for each scenario: runs of
  {TRIAL_STEPS} steps with all values on trajectories of another seed, and the best for throughput is taken, and the
  best for reward in a row of its own if it is another. With planner `static-best`, the split of the GPUs and the
  layouts of both stages are the best fixed ones in hindsight, which no system has in practice: they are searched once
  for all ways of a kind, and each system takes the better of the best two.
- **Staleness.** All asynchronous systems have the same bound, 2 weight versions unless the scenario gives another, and
  so have synchronous ones that carry samples over to later steps. `late: train` bounds starts, as the admission formula
  does, and trains on the groups that end first, however old; one step off is one version.
- **Caches.** A router that keeps a trajectory on its engine finds its cache there. At each weight sync caches are
  dropped, except those of turns that are running.
- **Costs** of engines, training and weight sync are the same for all, by the same roofline or profile.
"""
