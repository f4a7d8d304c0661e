"""The version of the installed package, which comes from the git tag that it was built from."""

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """Its version; sources that were never installed have none."""
    try:
        return version("steelyard")
    except PackageNotFoundError:
        return "0+unknown"


__version__ = installed()
