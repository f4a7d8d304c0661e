"""Asserts in the shared helpers are explained like those in the tests; no cache of the user's is read or written."""

import os

import pytest

pytest.register_assert_rewrite("support")
os.environ["STEELYARD_CACHE"] = ""
