"""`python -m studies figures [EXAMPLE ...]`, `screenshots [PICTURE ...]`; or `pareto`, `estimates`, `roles`,
`phases`, `tail` with changes to them.

Changes read as those of `steelyard simulate --set`, such as `python -m studies pareto workload.prompt=1024`. Only a
study without any writes its figure and its section of the page. `screenshots` takes the pictures of
reports and of the local page.
"""

from __future__ import annotations

import sys

from steelyard import UserError
from studies import figures, pareto, phases, roles, screenshots, tail

STUDIES = {
    "figures": figures.main,
    "pareto": pareto.main,
    "estimates": pareto.estimates,
    "roles": roles.main,
    "phases": phases.main,
    "tail": tail.main,
    "screenshots": screenshots.main,
}


def main(arguments: list[str]) -> int:
    """Make what was asked for."""
    if not arguments or arguments[0] not in STUDIES:
        raise UserError(f"say what to make: {', '.join(STUDIES)}")
    STUDIES[arguments[0]](arguments[1:])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(str(error))
