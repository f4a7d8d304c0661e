"""The files of `deploy`: what they call exists and takes what it is given, and what they refer to is there."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from steelyard import posttrain_from_dict
from steelyard.cli.commands import COMMANDS, Deferred
from steelyard.cli.control_runs import ACTIONS
from steelyard.live.supervise import GRACE_SECONDS
from steelyard.live.tracing import ENDPOINT
from steelyard.sim.cache import FOLDER
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/steelyard/bin/steelyard"
ENVIRONMENT = {FOLDER, ENDPOINT, "PYTHONUNBUFFERED"}
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kuberay" / "steelyard.yaml").read_text("utf-8")))


class Unit(configparser.RawConfigParser):
    """A file of systemd, whose keys may be repeated."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]  # keys have capitals
        self.read_string(path.read_text(encoding="utf-8"))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [each for each in MANIFEST if each["kind"] == kind]
    return found


def instructions(name: str) -> list[str]:
    """What follows a word at the beginning of a line of the Containerfile. Lines that go on are joined."""
    joined = re.sub(r"\\\n\s*", "", CONTAINER)
    return [line.removeprefix(f"{name} ") for line in joined.splitlines() if line.startswith(f"{name} ")]


def called() -> Iterator[tuple[str, list[str]]]:
    """Every call of ours: the file, and the words after the program's name."""
    for path in UNITS:
        for key in ("ExecStart", "ExecReload"):
            if key in Unit(path)["Service"]:
                program, *words = shlex.split(Unit(path)["Service"][key])
                assert program == PROGRAM
                yield f"{path.name}: {key}", words
    program, *words = shlex.split(of_kind("RayJob")["spec"]["entrypoint"])
    assert program == "steelyard"
    yield "kuberay", words
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["steelyard"]
    yield "Containerfile", json.loads(instructions("CMD")[-1])


@pytest.mark.parametrize(("where", "words"), list(called()))
def test_a_command_takes_what_it_is_given(where: str, words: list[str]) -> None:
    """Parsed as the command line would be, and not run."""
    name, *rest = words
    assert name in COMMANDS
    context = Deferred(name, "").make_context(name, list(rest))
    if name == "control" and context.params["more"]:
        assert str(context.params["scenario"]) in ACTIONS
    elif name == "control":
        assert context.params["resume"] and context.params["out"] is not None, "it goes on after a restart"


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(Exception, match=r"(?i)no such option"):
        Deferred("control", "").make_context("control", ["scenario.yaml", "--no-such-option"])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_of_systemd(path: Path, tmp_path: Path) -> None:
    service = Unit(path)["Service"]
    assert int(service["TimeoutStopSec"]) > GRACE_SECONDS
    names = {each.partition("=")[0] for each in shlex.split(service["Environment"])}
    assert names <= ENVIRONMENT
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    trial = tmp_path / path.name  # the program is installed nowhere, which alone would be an error
    trial.write_text(path.read_text(encoding="utf-8").replace(PROGRAM, "/bin/true"), encoding="utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", str(trial)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_control_unit_ends_and_restarts_as_the_program_does() -> None:
    from steelyard.cli.edge import INTERRUPTED, MISTAKE

    service = Unit(DEPLOY / "systemd" / "steelyard-control.service")["Service"]
    assert service["KillMode"] == "mixed", "parts are ended by the program"
    assert int(service["SuccessExitStatus"]) == INTERRUPTED
    assert int(service["RestartPreventExitStatus"]) == MISTAKE


def test_the_container_is_pinned_and_nobody_is_root_in_it() -> None:
    install = [each for each in instructions("RUN") if "pip install" in each]
    assert len(install) == 1 and "--constraint" in install[0] and "[live]" in install[0]
    assert instructions("USER") == ["10001:10001"]
    copied = [word for each in instructions("COPY") for word in each.split()[:-1]]
    assert copied and all((ROOT / word).exists() for word in copied)
    assert all(re.fullmatch(r"python:3\.\d+-slim( AS build)?", each) for each in instructions("FROM"))
    environment = {word.partition("=")[0] for each in instructions("ENV") for word in each.split()}
    assert environment <= ENVIRONMENT
    (words,) = [words for where, words in called() if where == "Containerfile"]
    port = words[words.index("--metrics") + 1]
    assert instructions("EXPOSE") == [port] and f":{port}/health" in instructions("HEALTHCHECK")[0]


def test_the_manifest_refers_to_what_is_there() -> None:
    spec = of_kind("RayJob")["spec"]
    cluster = spec["rayClusterSpec"]
    pods = [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert set(volumes) == set(mounts)
        assert (
            volumes["runs"]["persistentVolumeClaim"]["claimName"]
            == of_kind("PersistentVolumeClaim")["metadata"]["name"]
        )
        assert volumes["scenario"]["configMap"]["name"] == of_kind("ConfigMap")["metadata"]["name"]
        assert volumes["tokens"]["secret"]["secretName"] == "steelyard-tokens", "which docs/deploy.md makes"
        words = spec["entrypoint"].split()
        assert words[2] == f"{mounts['scenario']}/scenario.yaml"
        assert words[words.index("--out") + 1].startswith(mounts["runs"])
        assert words[words.index("--tokens") + 1] == f"{mounts['tokens']}/tokens"
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["metrics"] == int(words[words.index("--metrics") + 1])
        assert f"-t {container['image']} ." in (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
        assert {each["name"] for each in container["env"]} <= ENVIRONMENT
        assert pod["spec"]["securityContext"]["runAsUser"] == int(instructions("USER")[0].partition(":")[0])
        assert pod["spec"]["terminationGracePeriodSeconds"] > GRACE_SECONDS
    assert of_kind("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ray=={cluster['rayVersion']}" in pinned
    assert not [each for each in MANIFEST if each["kind"] == "Secret"], "no token is in a file of the repository"


def test_the_scenario_of_the_manifest_can_be_run() -> None:
    text = of_kind("ConfigMap")["data"]["scenario.yaml"]
    assert posttrain_from_dict(yaml.safe_load(text)).planner == "given"
