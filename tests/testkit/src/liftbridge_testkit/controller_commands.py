"""Commands at random: mostly what an honest broker would send, now and then forged or stale."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from liftbridge_broker.access.rules import (
    OPERATIONS,
    AccessRule,
    NameMatch,
    ResourceKind,
    super_rules,
)
from liftbridge_broker.controller.callers.commands import (
    ChangeRules,
    CreateToken,
    ExpireToken,
    RevokeToken,
    SetAccess,
    SetQuota,
)
from liftbridge_broker.controller.callers.tokens import VERIFIER_PREFIX
from liftbridge_broker.controller.commands import (
    MEMBER_ALREADY,
    AdvertiseListeners,
    AlterPartition,
    AlterStream,
    Bootstrap,
    BrokerLoad,
    CancelReassignment,
    ChangeLeader,
    Command,
    ConfirmActivity,
    CordonBroker,
    CreateEncryptedStream,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    InitPublisher,
    IsrMember,
    LeaderChange,
    Leadership,
    MarkStream,
    PauseStream,
    RecoverUnclean,
    RegisterBroker,
    RemoveBroker,
    ReplicaAnswer,
    ReportMasterKeys,
    Resign,
    ResumeStream,
    RewrapDataKeys,
    RewrappedKey,
    SetActivity,
    SetCatchUpRate,
    SetFeatureLevel,
    SetMasterKey,
    SetReadonly,
    ShutDownBroker,
    StartReassignment,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import NOBODY, BrokerId, PartitionId, StreamId, StreamName
from liftbridge_broker.model.keys import DataKey, MasterKey
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.model.subjects import ACTIVITY_STREAM

BROKERS: Final = tuple(BrokerId(name) for name in "abcde")
STREAMS: Final = tuple(StreamName(name) for name in ("one", "two", "three", "__cursors"))
MASTER_KEYS: Final = ("k", "l")
FORGED_ONE_IN: Final = 12
"""One number in so many is not the one an honest broker would send."""


class CommandMaker:
    """Makes commands for a state.

    Args:
        random: Chance; equal states and chances give equal commands.
        state: State that the commands are meant for; only read.
    """

    def __init__(self, random: Random, state: ClusterState) -> None:
        self._random = random
        self._state = state
        self._partitions = [partition for _, partition in state.partitions()]

    def make(self, kind: str) -> Command:
        """A command of a kind, one of `KINDS`."""
        return KINDS[kind](self)

    def _number(self, honest: int) -> int:
        """A number that is sometimes off by one or far away, never below 0."""
        if self._random.randrange(FORGED_ONE_IN):
            return honest
        return max(0, honest + self._random.choice((-1, 1, 2**40)))

    def _flag(self, one_in: int = 2) -> bool:
        return self._random.randrange(one_in) == 0

    def _broker(self) -> BrokerId:
        return self._random.choice(BROKERS)

    def _one_of(self, *, fenced: bool) -> BrokerId:
        """A broker in the state asked for, where there is one and as a rule."""
        found = [
            broker.broker
            for broker in self._state.brokers.values()
            if broker.fenced == fenced and not broker.removed
        ]
        return self._random.choice(found) if found and not self._flag_forged() else self._broker()

    def _flag_forged(self) -> bool:
        return self._flag(FORGED_ONE_IN)

    def _brokers(self) -> tuple[BrokerId, ...]:
        return tuple(self._random.sample(BROKERS, self._random.randint(1, 4)))

    def _epoch(self, broker: BrokerId) -> int:
        known = self._state.brokers.get(broker)
        return self._number(known.broker_epoch if known else 0)

    def _partition(self) -> PartitionState | None:
        return self._random.choice(self._partitions) if self._partitions else None

    def _partition_id(self) -> PartitionId:
        partition = self._partition()
        return PartitionId(self._number(partition.partition_id if partition else 1))

    def _load(self) -> tuple[BrokerLoad, ...]:
        return tuple(BrokerLoad(self._broker(), self._random.randrange(5)) for _ in range(2))

    def _overrides(self) -> StreamOverrides:
        return StreamOverrides(
            min_isr=self._random.choice((None, None, 0, 1, 2, 3)),
            unclean_mode=self._random.choice((None, *UncleanMode)),
            fsync_policy=self._random.choice((None, *FsyncPolicy)),
        )

    # Brokers.

    def register(self) -> RegisterBroker:
        """A process starts, cleanly or not, seldom on other data."""
        broker = self._broker()
        known = self._state.brokers.get(broker)
        marker = known.broker_epoch if known and self._flag() else 0
        same = known is not None and self._flag(6)
        return RegisterBroker(
            broker=broker,
            incarnation_id=known.incarnation_id if same and known else f"{self._random.random()}",
            data_dir_id="other" if self._flag(10) else "data",
            previous_broker_epoch=self._number(marker),
            clean_partitions=tuple(self._partition_id() for _ in range(self._random.randrange(3))),
            quarantined_partitions=(self._partition_id(),) if self._flag(6) else (),
            zone=self._random.choice(("", "x", "y")),
            feature_level=self._random.choice((0, 1, 2, 2, 4, 4, 4, 4)),
            replicas_max=self._random.choice((0, 0, 1, 3, 8)),
        )

    def unfence(self) -> UnfenceBroker:
        """A broker caught up."""
        broker = self._one_of(fenced=True)
        return UnfenceBroker(
            broker=broker,
            broker_epoch=self._epoch(broker),
            applied_index=self._number(self._state.applied_index),
            want_fence=self._flag(10),
        )

    def fence(self) -> FenceBroker:
        """A broker went silent."""
        broker = self._one_of(fenced=False)
        return FenceBroker(broker=broker, broker_epoch=self._epoch(broker))

    def shut_down(self) -> ShutDownBroker:
        """A broker wants to stop."""
        broker = self._one_of(fenced=False)
        return ShutDownBroker(broker=broker, broker_epoch=self._epoch(broker))

    def advertise(self) -> AdvertiseListeners:
        """A broker is reached elsewhere."""
        broker = self._one_of(fenced=self._flag())
        places = (ListenerAddress("out", "h", self._random.randrange(3)),) if self._flag() else ()
        return AdvertiseListeners(broker=broker, broker_epoch=self._epoch(broker), listeners=places)

    def report_keys(self) -> ReportMasterKeys:
        """A broker has other master keys."""
        broker = self._one_of(fenced=self._flag())
        keys = tuple(MasterKey(key, b"c" * 8) for key in MASTER_KEYS if self._flag())
        return ReportMasterKeys(broker=broker, broker_epoch=self._epoch(broker), keys=keys)

    def rotate(self) -> SetMasterKey:
        """An operator chooses another master key."""
        return SetMasterKey(master_key=self._random.choice(MASTER_KEYS))

    def rewrap(self) -> RewrapDataKeys:
        """A broker wraps some data keys again, seldom of a key that was replaced since."""
        keys = [
            RewrappedKey(
                StreamId(self._number(stream.stream_id)),
                stream.data_key.wrapped if not self._flag_forged() else b"old",
                self._random.choice(MASTER_KEYS),
                b"w%d" % self._random.randrange(100),
                stream.data_key.check if not self._flag_forged() else b"d" * 8,
            )
            for stream in self._state.streams.values()
            if stream.data_key is not None
        ]
        return RewrapDataKeys(keys=tuple(keys))

    def create_encrypted(self) -> CreateEncryptedStream:
        """A client creates an encrypted stream."""
        created = self.create()
        stream = replace(created, overrides=replace(created.overrides, encryption=True))
        key = DataKey(self._random.choice(MASTER_KEYS), b"wrapped", b"c" * 8)
        return CreateEncryptedStream(stream=stream, key=key)

    def cordon(self) -> CordonBroker:
        """An operator closes or opens a broker."""
        return CordonBroker(broker=self._broker(), cordoned=self._flag(), draining=self._flag(4))

    def remove(self) -> RemoveBroker:
        """An operator removes a broker."""
        broker = self._one_of(fenced=True)
        return RemoveBroker(broker=broker, broker_epoch=self._epoch(broker))

    def level(self) -> SetFeatureLevel:
        """Other rules are asked for."""
        return SetFeatureLevel(feature_level=self._random.choice((0, 1, 2, 4, 4)))

    def catch_up_rate(self) -> SetCatchUpRate:
        """An operator slows reassignments down."""
        return SetCatchUpRate(bytes_per_second=self._random.choice((0, 1, 4_096, 1 << 20)))

    def bootstrap(self) -> Bootstrap:
        """A cluster is named."""
        return Bootstrap(cluster_id=self._random.choice(("", "x", "y")), feature_level=0)

    # Partitions.

    def alter_partition(self) -> AlterPartition:
        """A leader asks for another in-sync set."""
        partition = self._partition()
        broker = partition.leader if partition and partition.leader else self._broker()
        replicas = partition.replicas if partition else BROKERS
        wanted = [replica for replica in replicas if replica == broker or self._flag()]
        if self._flag(FORGED_ONE_IN):
            wanted.append(self._broker())
        return AlterPartition(
            broker=broker if self._random.randrange(FORGED_ONE_IN) else self._broker(),
            broker_epoch=self._epoch(broker),
            partition_id=partition.partition_id if partition else PartitionId(1),
            leader_epoch=self._number(partition.leader_epoch if partition else 1),
            partition_epoch=self._number(partition.partition_epoch if partition else 1),
            isr=tuple(self._member(partition, one) for one in wanted),
            is_recovering=self._flag(FORGED_ONE_IN),
        )

    def _member(self, partition: PartitionState | None, broker: BrokerId) -> IsrMember:
        if partition is not None and broker in partition.isr and self._flag():
            return IsrMember(broker, MEMBER_ALREADY)
        epoch = partition.replica_epoch(broker) if partition else None
        honest = IsrMember(broker, self._number(epoch or 0))
        return honest if self._random.randrange(FORGED_ONE_IN) else IsrMember(broker, -1)

    def reassign(self) -> StartReassignment:
        """An operator moves a partition."""
        return StartReassignment(partition_id=self._partition_id(), target=self._brokers())

    def cancel(self) -> CancelReassignment:
        """An operator gives a move up."""
        return CancelReassignment(partition_id=self._partition_id(), is_unclean=self._flag(4))

    def prefer(self) -> ElectPreferred:
        """The balancer looks at some partitions."""
        return ElectPreferred(partitions=tuple(self._partition_id() for _ in range(3)))

    def recover(self) -> RecoverUnclean:
        """The controller or an operator recovers a partition without a leader."""
        leaderless = [one for one in self._partitions if one.leader is None]
        partition = self._random.choice(leaderless) if leaderless else self._partition()
        asked = partition.last_known_elr or partition.replicas if partition else BROKERS
        answers = tuple(
            ReplicaAnswer(
                one, self._epoch(one), self._random.randrange(3), self._random.randrange(3)
            )
            for one in asked
            if self._random.randrange(6)
        )
        best = max(answers, key=lambda one: (one.last_epoch, one.log_end_offset), default=None)
        return RecoverUnclean(
            partition_id=partition.partition_id if partition else PartitionId(1),
            chosen=best.broker if best and self._random.randrange(4) else self._broker(),
            partition_epoch=self._number(partition.partition_epoch if partition else 1),
            mode=self._random.choice(tuple(UncleanMode)),
            answers=answers,
        )

    def change_leader(self) -> ChangeLeader:
        """Followers cannot reach their leaders."""
        return ChangeLeader(
            changes=tuple(
                LeaderChange(
                    partition.partition_id,
                    self._number(partition.leader_epoch),
                    self._number(partition.partition_epoch),
                    partition.leader or self._broker(),
                )
                for partition in self._partitions[:2]
            )
        )

    def declare(self) -> DeclareUnclean:
        """A replica is damaged."""
        partition = self._partition()
        broker = self._random.choice(partition.replicas) if partition else self._broker()
        epoch = partition.replica_epoch(broker) if partition else 0
        return DeclareUnclean(
            broker=broker,
            broker_epoch=self._epoch(broker),
            partition_id=partition.partition_id if partition else PartitionId(1),
            replica_epoch=self._number(epoch or 0),
        )

    def resign(self) -> Resign:
        """A leader resigns leaderships."""
        broker = self._one_of(fenced=False)
        return Resign(
            broker=broker,
            broker_epoch=self._epoch(broker),
            partitions=tuple(
                Leadership(partition.partition_id, self._number(partition.leader_epoch))
                for partition in self._partitions
                if partition.leader == broker
            ),
            leaves_isr=self._flag(),
            successor=self._broker() if self._flag(4) else NOBODY,
        )

    # Streams.

    def create(self) -> CreateStream:
        """A client or the broker itself creates a stream."""
        name = self._random.choice(STREAMS)
        return CreateStream(
            name=name,
            subject="s",
            replication_factor=self._random.choice((-1, 1, 2, 3, 3, 4)),
            partitions=self._random.randint(1, 2),
            overrides=self._overrides(),
            is_internal=name.startswith("__"),
            min_isr_default=self._random.choice((0, 0, 1, 2)),
            load=self._load(),
        )

    def delete(self) -> DeleteStream:
        """A stream is deleted."""
        return DeleteStream(name=self._random.choice(STREAMS), is_internal=self._flag())

    def alter(self) -> AlterStream:
        """A stream gets other settings, perhaps another number of replicas."""
        return AlterStream(
            name=self._random.choice(STREAMS),
            overrides=self._overrides(),
            is_internal=self._flag(),
            replication_factor=self._random.choice((0, 0, 1, 2, 3, 4)),
            load=self._load(),
        )

    def pause(self) -> PauseStream | ResumeStream | SetReadonly:
        """Flags of a stream change."""
        name = self._random.choice(STREAMS)
        return self._random.choice(
            (
                PauseStream(name=name, partitions=(0,), resume_all=self._flag()),
                PauseStream(name=name, is_automatic=True, is_internal=True),
                ResumeStream(name=name),
                SetReadonly(name=name, readonly=self._flag()),
            )
        )

    def publisher(self) -> InitPublisher:
        """A publisher begins."""
        return InitPublisher(stream=self._random.choice(STREAMS), publisher="p")

    def mark(self) -> MarkStream:
        """Set or clear the owner of a stream."""
        name = self._random.choice(STREAMS)
        stream = self._state.stream(name)
        return MarkStream(
            name=name,
            stream_id=self._number(stream.stream_id if stream else 1),
            expected=self._random.choice(("", "x", "y")),
            owner=self._random.choice(("", "x", "y")),
        )

    # Quotas.

    def quota(self) -> SetQuota:
        """An operator limits a principal."""
        return SetQuota(kind="principal", name="*", publish_bytes=self._number(1), streams=1)

    # Tokens.

    def _token(self) -> str:
        return self._random.choice("abc") * 12

    def create_token(self) -> CreateToken:
        """An operator gives a token to a program."""
        return CreateToken(
            token_id=self._token(),
            principal=self._random.choice(("billing", "")),
            verifier=VERIFIER_PREFIX + "s" * 22 + "$" + "h" * 43,
            created=self._number(1),
            expires=self._random.choice((0, 1, 2, 3)),
        )

    def expire_token(self) -> ExpireToken:
        """Its successor is in use."""
        return ExpireToken(token_id=self._token(), expires=self._number(2))

    def revoke_token(self) -> RevokeToken:
        """It leaked."""
        return RevokeToken(token_id=self._token())

    # Access.

    def access(self) -> Command:
        """Access control on or off."""
        users = tuple(self._random.sample(("root", "eve", "*"), self._random.randrange(3)))
        return SetAccess(is_on=not self._flag(3), super_users=users)

    def rules(self) -> Command:
        """Rules granted and revoked."""
        return ChangeRules(granted=self._rules(), revoked=self._rules())

    def _rules(self) -> tuple[AccessRule, ...]:
        made = [
            AccessRule(
                self._random.choice(("root", "eve", "*")),
                self._flag(),
                kind,
                self._random.choice((NameMatch.EXACT, NameMatch.PREFIX)),
                self._random.choice(("cluster", *STREAMS)),
                self._flag(4),
                int(self._random.choice(OPERATIONS[kind])),
            )
            for kind in self._random.sample(list(ResourceKind), self._random.randrange(3))
        ]
        return (*made, *(super_rules("root") if self._flag(6) else ()))

    # The activity stream.

    def set_activity(self) -> SetActivity:
        """A broker starts with another setting."""
        broker = self._one_of(fenced=False)
        return SetActivity(
            broker=broker, broker_epoch=self._epoch(broker), is_wanted=not self._flag(4)
        )

    def confirm_activity(self) -> ConfirmActivity:
        """The leader of the activity stream stored some events, or has lost some."""
        queue, stream = self._state.activity, self._state.stream(ACTIVITY_STREAM)
        partition = None if stream is None else stream.partitions[0]
        count = self._random.randint(0, len(queue.events))
        end = queue.end_offset + count
        return ConfirmActivity(
            partition_id=PartitionId(self._number(partition.partition_id if partition else 1)),
            leader_epoch=self._number(partition.leader_epoch if partition else 1),
            start_offset=self._number(queue.end_offset),
            last_id=queue.events[count - 1].event_id if count else 0,
            end_offset=end if not self._flag(8) else self._random.randint(0, end),
        )


KINDS: Final[Mapping[str, Callable[[CommandMaker], Command]]] = {
    "register": CommandMaker.register,
    "unfence": CommandMaker.unfence,
    "fence": CommandMaker.fence,
    "shut_down": CommandMaker.shut_down,
    "advertise": CommandMaker.advertise,
    "cordon": CommandMaker.cordon,
    "remove": CommandMaker.remove,
    "level": CommandMaker.level,
    "bootstrap": CommandMaker.bootstrap,
    "alter_partition": CommandMaker.alter_partition,
    "reassign": CommandMaker.reassign,
    "cancel": CommandMaker.cancel,
    "prefer": CommandMaker.prefer,
    "recover": CommandMaker.recover,
    "change_leader": CommandMaker.change_leader,
    "declare": CommandMaker.declare,
    "resign": CommandMaker.resign,
    "create": CommandMaker.create,
    "delete": CommandMaker.delete,
    "alter": CommandMaker.alter,
    "pause": CommandMaker.pause,
    "publisher": CommandMaker.publisher,
    "mark": CommandMaker.mark,
    "catch_up_rate": CommandMaker.catch_up_rate,
    "quota": CommandMaker.quota,
    "create_token": CommandMaker.create_token,
    "expire_token": CommandMaker.expire_token,
    "revoke_token": CommandMaker.revoke_token,
    "access": CommandMaker.access,
    "rules": CommandMaker.rules,
    "set_activity": CommandMaker.set_activity,
    "confirm_activity": CommandMaker.confirm_activity,
    "report_keys": CommandMaker.report_keys,
    "rotate": CommandMaker.rotate,
    "rewrap": CommandMaker.rewrap,
    "create_encrypted": CommandMaker.create_encrypted,
}
WEIGHTS: Final[Mapping[str, int]] = {
    "register": 10, "unfence": 20, "fence": 5, "alter_partition": 40, "create": 10, "reassign": 4,
    "recover": 6, "change_leader": 4, "prefer": 4, "alter": 4, "remove": 1, "level": 1,
    "bootstrap": 1, "cordon": 1, "mark": 1, "catch_up_rate": 1, "set_activity": 1,
    "confirm_activity": 1, "access": 1, "rules": 1, "create_token": 1, "expire_token": 1,
    "revoke_token": 1, "quota": 1,
    "report_keys": 1, "rotate": 1, "rewrap": 1, "create_encrypted": 1,
}  # fmt: skip
"""Weight of each kind of command; 2 for kinds that are not listed."""


def random_command(random: Random, state: ClusterState) -> Command:
    """A command of any kind for a state."""
    kinds = tuple(KINDS)
    (kind,) = random.choices(kinds, [WEIGHTS.get(one, 2) for one in kinds])
    return CommandMaker(random, state).make(kind)
