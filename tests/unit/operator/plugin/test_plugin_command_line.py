"""The command line of the plugin: what it takes, what it prints, and how it ends."""

import json
import re
import shlex
import tomllib
from contextlib import asynccontextmanager

import click
import pytest

from liftbridge_operator.kube.errors import (
    ForbiddenError,
    InvalidError,
    UnauthorizedError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.plugin.cli import TRACEBACK, main, make_group
from liftbridge_operator.plugin.exits import ExitCode, PluginError, exit_of
from liftbridge_operator.plugin.reference import reference
from liftbridge_testkit.kube.person import PersonKube, cluster, plan, reach_of
from liftbridge_testkit.repository import ROOT, files, relative

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def kube():
    found = PersonKube()
    found.put(cluster(plan=plan()))
    return found


@pytest.fixture
def run(kube, capsys):
    """Runs a command line; gives its exit code, its output and its talk."""

    def command(*words):
        code = main(words, reach_of(kube))
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return command


def annotations(kube):
    return kube.all_of(CLUSTERS)[0]["metadata"].get("annotations", {})


# -- commands ---------------------------------------------------------------------------------


def test_commands_are_the_six(run):
    code, out, _ = run("--help")
    assert code == 0
    assert list(make_group().commands) == [
        "status",
        "plan",
        "approve",
        "restart",
        "drain",
        "support-bundle",
    ]
    assert all(name in out for name in make_group().commands)
    assert run("--version")[:2] == (0, "kubectl liftbridge, version 0.1.0\n")


def test_command_has_the_name_that_kubectl_looks_for():
    text = (ROOT / "operator" / "pyproject.toml").read_text(encoding="utf-8")
    scripts = tomllib.loads(text)["project"]["scripts"]
    assert scripts["kubectl-liftbridge"] == f"{main.__module__}:{main.__name__}"


def test_status_of_one_and_of_all(run, kube):
    assert "shop/orders  Ready: True" in run("status", "orders")[1]
    assert run("status")[1].startswith("NAMESPACE")
    assert run("status", "-A", "-n", "elsewhere")[1].count("orders") == 1
    assert run("status", "-n", "elsewhere")[1] == "There is no LiftbridgeCluster.\n"
    code, _, err = run("status", "orders", "-A")
    assert (code, "are mutually exclusive" in err) == (2, True)


@pytest.mark.parametrize("words", [["status", "orders"], ["status"], ["plan"]])
def test_json_is_one_document(run, words):
    code, out, err = run(*words, "-o", "json")
    assert (code, err) == (0, "")
    assert "abc123" in json.dumps(json.loads(out))


def test_approval_names_the_hash_or_a_person_is_asked(run, kube):
    code, out, err = run("approve", "orders")
    assert (code, out) == (2, "")
    assert "plan abc123, waits for approval" in err
    assert "There is no terminal to ask on: use --yes" in err
    assert annotations(kube) == {}
    assert run("approve", "--hash", "other")[0] == 1
    code, out, _ = run("approve", "orders", "--hash", "abc123")
    assert (code, out) == (0, "shop/orders: plan abc123 is approved.\n")
    assert annotations(kube) == {"liftbridge.io/approve": "abc123"}


def test_approval_of_what_is_shown(run, kube):
    code, _, err = run("approve", "--yes")
    assert code == 0
    assert "orders-2" in err
    assert annotations(kube) == {"liftbridge.io/approve": "abc123"}


def test_restart_is_asked_for(run, kube):
    assert run("restart", "orders")[0] == 2
    assert annotations(kube) == {}
    code, out, _ = run("restart", "orders", "--broker", "1", "--broker", "orders-2", "-y")
    assert (code, "requested the restart of orders-1, orders-2" in out) == (0, True)
    assert annotations(kube) == {"liftbridge.io/restart-pods": "pod-1,pod-2"}
    run("restart", "orders", "--yes")
    assert re.fullmatch(r"20\d\d-.*\+00:00", annotations(kube)["liftbridge.io/restart"])


def test_drain_is_asked_for_and_taken_back(run, kube):
    assert run("drain", "orders-1", "--no-wait")[:2] == (
        0,
        "shop/orders: requested the drain of orders-1\n",
    )
    run("drain", "--node", "node-2", "--no-wait")
    assert annotations(kube) == {"liftbridge.io/drain": "orders-1,orders-2"}
    run("drain", "orders-1", "orders-2", "--undo", "--no-wait")
    assert annotations(kube) == {}


def test_drain_that_takes_too_long_ends_so(run):
    code, _, err = run("drain", "orders-1", "--timeout", "1ms")
    assert code == ExitCode.TIMED_OUT
    assert "timed out after 0.001 s: orders-1 is not cordoned yet" in err


def test_bundle_is_written_with_progress(run, tmp_path):
    path = tmp_path / "b.tar.gz"
    code, out, err = run("support-bundle", "orders", "-f", str(path), "--max-size", "1Mi")
    assert code == 0
    assert out.startswith(f"{path}: ")
    assert "cluster.json: " in err
    code, _, err = run("support-bundle", "-f", str(path))
    assert (code, str(path) in err) == (1, True)
    path.unlink()
    code, out, _ = run("support-bundle", "-f", str(path), "-o", "json", "--log-lines", "0")
    assert json.loads(out)["manifest"]["bounds"]["logLines"] == 0


def test_bundle_that_cannot_be_written_is_told(run, tmp_path):
    code, _, err = run("support-bundle", "-f", str(tmp_path / "no" / "b.tar.gz"))
    assert code == 1
    assert "No such file or directory" in err


# -- where ------------------------------------------------------------------------------------


def test_options_of_kubectl_stand_before_or_after_and_the_nearer_counts(run, kube):
    run("--context", "far", "-n", "first", "status", "-n", "second", "--kubeconfig", "file")
    place = kube.places[-1]
    assert (place.context, place.namespace, place.kubeconfig) == ("far", "second", "file")
    run("--request-timeout", "1m", "status")
    assert kube.places[-1].request_s == 60
    run("status", "--request-timeout", "5s")
    assert kube.places[-1].request_s == 5
    run("status")
    assert (kube.places[-1].namespace, kube.places[-1].request_s) == ("", 20)


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["status", "--no-such"], "No such option"),
        (["restart"], "Missing argument 'CLUSTER'"),
        (["drain"], "give either BROKER or --node"),
        (["drain", "a-1", "--timeout", "soon"], "'soon' is not a duration"),
        (["support-bundle", "--max-size", "much"], "'much' is not a size"),
        (["support-bundle", "--log-lines", "-1"], "-1 is not in the range"),
        (["status", "-o", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_command_line_is_told_in_one_line(run, words, text):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert text in err
    assert err.startswith("kubectl liftbridge: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UnavailableError("GET /x: refused"), 3, "GET /x: refused"),
        (UnauthorizedError("GET /x: who?", status=401), 3, "does not accept these credentials"),
        (ForbiddenError("GET /x: no", status=403), 1, "you are not allowed to do this: GET /x: no"),
        (InvalidError("PATCH /x: two\nlines", status=422), 1, "PATCH /x: two lines"),
        (PluginError("said", ExitCode.TIMED_OUT), 4, "said"),
        (OSError(28, "No space left on device", "b.tar.gz"), 1, "b.tar.gz: No space left"),
        (ZeroDivisionError("by zero"), 1, "this is a bug: ZeroDivisionError: by zero"),
    ],
)
def test_every_error_is_one_line_and_an_exit_code(capsys, error, code, text):
    @asynccontextmanager
    async def reach(_where):
        raise error
        yield

    assert main(["status"], reach) == code
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
    assert exit_of(error)[1] == code


def test_traceback_is_there_when_it_is_asked_for(monkeypatch):
    @asynccontextmanager
    async def reach(_where):
        raise ZeroDivisionError
        yield

    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(ZeroDivisionError):
        main(["status"], reach)


def test_interruption_has_its_own_code(capsys):
    @asynccontextmanager
    async def reach(_where):
        raise KeyboardInterrupt
        yield

    assert main(["status"], reach) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip() == "kubectl liftbridge: interrupted"


# -- documents --------------------------------------------------------------------------------


def fault(line):
    """Why a command line is not understood, empty when it is; nothing is run."""
    words = shlex.split(line.partition("|")[0], comments=True)[2:]
    group = make_group()
    try:
        context = group.make_context("kubectl liftbridge", list(words))
        name, command, rest = group.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        command.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return f"{line}: {error.format_message()}"
    return ""


def lines(text):
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("kubectl liftbridge "):
                yield line


def test_reference_is_what_the_plugin_says():
    page = ROOT / "docs" / "reference" / "kubernetes" / "plugin.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "python -m liftbridge_operator.plugin.reference > docs/reference/kubernetes/plugin.md"
    )


def test_every_command_line_of_the_plugin_in_the_documents_is_understood():
    pages = [page for page in files(".md") if ROOT / "docs" in page.parents]
    found = [(relative(page), line) for page in pages for line in lines(page.read_text("utf-8"))]
    assert len(found) >= 6
    assert [(page, problem) for page, line in found if (problem := fault(line))] == []


@pytest.mark.parametrize("line", ["kubectl liftbridge no", "kubectl liftbridge plan --no-such"])
def test_planted_wrong_command_line_is_found(line):
    assert fault(line) != ""
