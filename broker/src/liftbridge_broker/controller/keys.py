"""Decisions about the keys of encrypted streams (C22 to C25, ADR 0023).

The state holds wrapped data keys only, and which broker has which master key. Marks such as
`# guard C22.replicas` name guards of the rules in docs/spec/replication.md.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final

from liftbridge_broker.controller.brokers import check_session
from liftbridge_broker.controller.commands import (
    ENCRYPTION_LEVEL,
    CreateEncryptedStream,
    ReportMasterKeys,
    RewrapDataKeys,
    SetMasterKey,
)
from liftbridge_broker.controller.draft import Draft
from liftbridge_broker.controller.records import (
    Cause,
    DataKeySet,
    Decision,
    Done,
    MasterKeySet,
    Record,
    StreamCreated,
    StreamIdAnswer,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.controller.streams import create_stream
from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.keys import (
    DataKey,
    MasterKey,
    fault_of_data_key,
    fault_of_id,
    fault_of_masters,
    is_same,
)

REWRAPPED_MAX: Final = 256
"""Data keys in one command."""
HANDLER_TEXT: Final = "Failed on preconditions for stream's encryption handler: "
"""Beginning of refusals, as in the original."""


def create_encrypted_stream(
    state: ClusterState, index: MetadataIndex, command: CreateEncryptedStream
) -> Decision:
    """C22: create a stream with a data key that all its replicas can unwrap."""
    _check_level(state)
    key = command.key
    if fault := fault_of_data_key(key):
        raise InvalidRequestError(f"Invalid data key, {fault}")
    if state.master_key and key.master_key != state.master_key:  # guard C22.current
        raise FailedPreconditionError(
            f"{HANDLER_TEXT}master key '{state.master_key}' is in use, not '{key.master_key}'"
        )
    decision = create_stream(state, index, command.stream, has_key=True)
    (created,) = decision.records
    assert isinstance(created, StreamCreated)
    assert isinstance(decision.answer, StreamIdAnswer)
    replicas = (broker for partition in created.partitions for broker in partition.replicas)
    check_reported(state, key.master_key, replicas)  # guard C22.replicas
    records: list[Record] = [created, DataKeySet(created.stream_id, key)]
    if not state.master_key:
        records.insert(0, MasterKeySet(key.master_key))
    return Decision(tuple(records), decision.answer)


def rewrap_data_keys(state: ClusterState, command: RewrapDataKeys) -> Decision:
    """C23: replace wrapped data keys by other wrappings of the same data keys."""
    _check_level(state)
    if len(command.keys) > REWRAPPED_MAX:
        raise InvalidRequestError(f"{len(command.keys)} data keys listed, at most {REWRAPPED_MAX}")
    records = []
    for rewrapped in command.keys:
        key = DataKey(rewrapped.master_key, rewrapped.wrapped, rewrapped.check)
        if fault := fault_of_data_key(key):
            raise InvalidRequestError(f"Invalid data key, {fault}")
        stream = state.streams.get(rewrapped.stream_id)
        if stream is None or stream.data_key is None:
            continue  # deleted since
        if stream.data_key.wrapped != rewrapped.expected:  # guard C23.expected
            continue  # another request was faster
        if stream.data_key.check != key.check:  # guard C23.same
            raise InvalidRequestError(f"Invalid data key, not the one of stream {stream.name}")
        records.append(DataKeySet(stream.stream_id, key))
    return Decision(tuple(records), Done())


def set_master_key(state: ClusterState, command: SetMasterKey) -> Decision:
    """C24: choose the master key for new data keys, once all replicas' brokers have it."""
    _check_level(state)
    if fault := fault_of_id(command.master_key):
        raise InvalidRequestError(f"Invalid master key, {fault}")
    if command.master_key == state.master_key:
        return Decision((), Done())
    check_reported(state, command.master_key, encrypted_brokers(state))  # guard C24.replicas
    return Decision((MasterKeySet(command.master_key),), Done())


def report_master_keys(
    state: ClusterState, index: MetadataIndex, command: ReportMasterKeys
) -> Decision:
    """C25: set the master keys of a broker, as its own process reports them."""
    _check_level(state)
    broker = check_session(state, command.broker, command.broker_epoch)  # guard C25.epoch
    if fault := fault_of_masters(command.keys):
        raise InvalidRequestError(f"Invalid master keys, {fault}")
    if command.keys == broker.master_keys:
        return Decision((), Done())
    draft = Draft(state, index)
    draft.put_broker(replace(broker, master_keys=command.keys), Cause.KEYS_REPORTED)
    return draft.decision(Done())


def encrypted_brokers(state: ClusterState) -> Iterable[BrokerId]:
    """Yield the brokers with replicas of encrypted streams, perhaps several times."""
    for stream_id in state.encrypted:
        for partition in state.streams[stream_id].partitions:
            yield from partition.replicas


def check_reported(state: ClusterState, key_id: str, brokers: Iterable[BrokerId]) -> None:
    """Refuse a master key that one of the brokers has not reported, or no broker has.

    Raises:
        FailedPreconditionError: A broker lacks it, or two brokers have different keys of this id.
    """
    known: list[tuple[BrokerId, MasterKey]] = []
    for reported in state.brokers.values():
        known += [(reported.broker, key) for key in reported.master_keys if key.key_id == key_id]
    havers = {broker for broker, _ in known}
    for broker in dict.fromkeys(brokers):
        if broker not in havers:
            raise FailedPreconditionError(
                f"{HANDLER_TEXT}broker {broker} has not reported master key '{key_id}'; "
                "configure encryption.keys.file or encryption.keys.command there"
            )
    if not known:
        raise FailedPreconditionError(f"{HANDLER_TEXT}no broker has master key '{key_id}'")
    for (one, first), (other, second) in pairwise(known):
        if not is_same(first, second):  # guard C22.same
            raise FailedPreconditionError(
                f"{HANDLER_TEXT}brokers {one} and {other} have different master keys of id "
                f"'{key_id}'"
            )


def _check_level(state: ClusterState) -> None:
    """Refuse commands that older brokers would decide otherwise."""
    if state.feature_level < ENCRYPTION_LEVEL:  # guard C22.level
        raise FailedPreconditionError(
            f"{HANDLER_TEXT}feature level {state.feature_level} is in force, needed "
            f"{ENCRYPTION_LEVEL}; upgrade all brokers, then raise it"
        )
