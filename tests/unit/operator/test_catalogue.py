"""The catalogue of what the operator tells: closed, complete, and in the shape Kubernetes wants."""

import re
from string import Formatter

import pytest

from liftbridge_operator.model.catalogue import names
from liftbridge_operator.model.catalogue.generate import constant
from liftbridge_operator.model.catalogue.load import (
    MESSAGE_LENGTH_MAX,
    Polarity,
    Presence,
    Text,
    load_catalogue,
)
from liftbridge_operator.model.crds.definitions import NOT_SEEN

CATALOGUE = load_catalogue()
CONDITIONS = list(CATALOGUE.conditions.values())
KINDS = ("LiftbridgeCluster", "Stream", "StreamPipeline", "LiftbridgeUser")
WORD = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
SENTENCE = re.compile(r"[A-Z{`].*\.", re.DOTALL)


def sentences():
    for spec in CONDITIONS:
        yield spec.meaning
        for reason in spec.reasons.values():
            yield reason.text.template
            yield reason.runbook
    for words in (CATALOGUE.waits, CATALOGUE.steps, CATALOGUE.risks):
        for word in words.values():
            yield word.meaning
            if words is CATALOGUE.waits:
                yield word.runbook
    for event in CATALOGUE.events.values():
        yield event.text.template


def test_words_have_the_form_that_kubernetes_wants():
    words = [spec.type for spec in CONDITIONS]
    words += [reason for spec in CONDITIONS for reason in spec.reasons]
    words += [*CATALOGUE.waits, *CATALOGUE.steps, *CATALOGUE.risks]
    words += [event.reason for event in CATALOGUE.events.values()]
    assert [word for word in words if not WORD.fullmatch(word)] == []


def test_every_text_and_every_runbook_is_a_sentence():
    assert [text for text in sentences() if not SENTENCE.fullmatch(text)] == []


def test_values_in_texts_are_plain_names():
    for text in sentences():
        for _, name, form, conversion in Formatter().parse(text):
            assert name is None or re.fullmatch(r"[a-z_]+", name)
            assert not form
            assert conversion is None


def test_statuses_and_kinds_are_known():
    told = {(spec.resource, r.status) for spec in CONDITIONS for r in spec.reasons.values()}
    assert {kind for kind, _ in told} == set(KINDS)
    assert {status for _, status in told} == {"True", "False", "Unknown"}
    assert {event.type for event in CATALOGUE.events.values()} == {"Normal", "Warning"}
    assert {event.resource for event in CATALOGUE.events.values()} == set(KINDS)


@pytest.mark.parametrize("spec", CONDITIONS, ids=lambda spec: f"{spec.resource}-{spec.type}")
def test_condition_can_say_all_that_it_must(spec):
    statuses = {reason.status for reason in spec.reasons.values()}
    if spec.presence is Presence.WHEN_TRUE:
        assert statuses == {"True"}
    else:
        # An object that nobody looked at has every condition, as Unknown.
        assert statuses == {"True", "False", "Unknown"}
        assert spec.reasons["NotReconciled"].status == "Unknown"


def test_alerts_are_about_what_nobody_wants():
    for spec in CONDITIONS:
        if spec.alert is None:
            continue
        wanted = {Polarity.GOOD: "True", Polarity.BAD: "False"}.get(spec.polarity)
        assert wanted not in spec.alert.statuses
        assert spec.alert.severity in {"critical", "warning", "info"}
        assert re.fullmatch(r"[0-9]+[mh]", spec.alert.duration)


def test_alerts_have_names_of_their_own():
    alerts = [spec.alert.name for spec in CONDITIONS if spec.alert]
    assert len(alerts) == len(set(alerts))


def test_reasons_of_reconciling_are_those_of_progress_under_way():
    progressing = CATALOGUE.condition("LiftbridgeCluster", "Progressing").reasons
    reconciling = CATALOGUE.condition("LiftbridgeCluster", "Reconciling").reasons
    assert reconciling == {
        word: reason for word, reason in progressing.items() if reason.status == "True"
    }


def test_condition_of_the_schema_is_in_the_catalogue():
    for kind in KINDS:
        reason = CATALOGUE.condition(kind, NOT_SEEN["type"]).reasons[NOT_SEEN["reason"]]
        assert (reason.status, reason.text.template) == (NOT_SEEN["status"], NOT_SEEN["message"])


def test_labels_of_metrics_are_bounded():
    labels = CATALOGUE.label_values()
    assert len(labels) == len(set(labels))
    assert ("Stream", "Ready", "True", "Reconciled") in labels
    assert len(labels) <= 230


def test_text_takes_its_values_and_no_others():
    text = Text("{ready} of {wanted}: {ready}.")
    assert text.fields == ("ready", "wanted")
    assert text.fill({"ready": 2, "wanted": 3}) == "2 of 3: 2."
    with pytest.raises(AssertionError, match="has"):
        text.fill({"ready": 2})


def test_text_that_is_too_long_is_cut():
    filled = Text("{detail}").fill({"detail": "x" * 2_000})
    assert len(filled) == MESSAGE_LENGTH_MAX
    assert filled.endswith("x ...")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("BelowMinISR", "BELOW_MIN_ISR"),
        ("IsrNotFull", "ISR_NOT_FULL"),
        ("MinISRGate", "MIN_ISR_GATE"),
    ],
)
def test_words_become_names_of_code(word, name):
    assert constant(word) == name


def test_enumerations_hold_the_words():
    assert names.ClusterConditionType.READY == "Ready"
    assert set(names.WaitFor) == set(CATALOGUE.waits)
    assert set(names.EventReason) == {event.reason for event in CATALOGUE.events.values()}
