"""Settings come from flags and variables, are checked at once, and say what is wrong in a line."""

import pytest

from liftbridge_operator import cli
from liftbridge_operator.process.settings import (
    SETTINGS,
    Settings,
    SettingsError,
    own_namespace,
)


def given(*arguments):
    """Settings that a command line leads to."""
    context = cli.operator.commands["run"].make_context("run", list(arguments))
    return Settings.of(context.params)


def test_defaults():
    found = given()
    assert found == Settings.of({})
    assert found.watch_namespaces == ()
    assert found.address == ("0.0.0.0", 8080)  # noqa: S104 - the default
    assert (found.lease_duration, found.lease_renew, found.lease_retry) == (15.0, 10.0, 2.0)
    assert found.labels == {"app.kubernetes.io/name": "liftbridge-operator"}


def test_flags_stand_over_variables(monkeypatch):
    monkeypatch.setenv("LIFTBRIDGE_OPERATOR_WATCH_NAMESPACES", "a, b,")
    monkeypatch.setenv("LIFTBRIDGE_OPERATOR_RESYNC", "60")
    found = given("--resync", "30", "--listen", "[::1]:9", "--pod-labels", "a=b,c=d")
    assert found.watch_namespaces == ("a", "b")
    assert found.resync == 30.0
    assert found.address == ("::1", 9)
    assert found.labels == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "not host:port"),
        (["--listen", ":8080"], "not host:port"),
        (["--listen", "0.0.0.0:99999"], "not host:port"),
        (["--pod-labels", "a"], "not name=value"),
        (["--lease-renew", "15"], "must rise"),
        (["--lease-retry", "10"], "must rise"),
        (["--cluster-workers", "0"], "not in the range"),
        (["--log-format", "xml"], "is not one of"),
        (["--resync", "soon"], "not a valid float"),
        (["--unknown"], "No such option"),
    ],
)
def test_wrong_settings_are_wrong_usage(arguments, said, capsys):
    assert cli.main(["run", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("liftbridge-operator, version ")


def test_every_setting_has_a_sentence_and_bounds():
    for setting in SETTINGS:
        assert setting.doc.endswith(".")
        if setting.kind in {"integer", "seconds"}:
            assert setting.minimum <= setting.default <= setting.maximum < 2**31 - 1


def test_settings_that_contradict_each_other_are_told():
    with pytest.raises(SettingsError):
        Settings.of({"lease_duration": 5.0})


def test_own_namespace_is_that_of_the_pod(tmp_path):
    path = tmp_path / "namespace"
    assert own_namespace(path) == "default"
    path.write_text("operators\n")
    assert own_namespace(path) == "operators"
