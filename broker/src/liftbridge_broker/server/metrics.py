"""Integers of `/metrics`: the counters of the node and its links, read at each scrape."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.adapters.nats.messaging import NatsMessaging
from liftbridge_broker.adapters.nats.peers import NatsTransport
from liftbridge_broker.adapters.observe.metrics import OTHER, Sample
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.tls import ServerTls
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.activity import PATHS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER
from liftbridge_broker.node.upkeep.group_lags import with_own_series
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.cluster_metrics import cluster_samples
from liftbridge_broker.server.identities import Identities
from liftbridge_broker.storage.log.lookup import last_record_before
from liftbridge_broker.storage.log.types import NO_TIMESTAMP

API_VERSION: Final = "2.0.0"


@dataclass(frozen=True, slots=True)
class StartingMetrics:
    """Implements `MetricsSource` for a broker that has not joined its cluster yet.

    Attributes:
        version: Version of the broker.
        started_ns: Wall clock of the start.
    """

    version: str
    started_ns: int

    def broker_samples(self) -> Mapping[str, Sample]:
        """Return the broker's identity, and that it is not ready."""
        return {
            "build_info": _build_info(self.version),
            "broker_start_time_seconds": self.started_ns,
            "broker_ready": 0,
        }

    def stream_samples(self) -> Iterable[tuple[str, Mapping[str, Sample]]]:
        """Return no samples: the broker has no streams yet."""
        return ()

    def partition_samples(self, _stream: str) -> Iterable[tuple[int, Mapping[str, int]]] | None:
        """Return `None`: the broker has no streams yet."""
        return None


@dataclass(slots=True)
class BrokerMetrics:
    """Implements `MetricsSource` for one broker.

    Attributes:
        version: Version of the broker.
        started_ns: Wall clock of the start.
        is_ready: Returns whether the broker accepts requests.
        tls: Certificates of the gRPC port, `None` without TLS.
        identities: Who may call.
        access: Access rules in force.
    """

    node: Node
    grpc: GrpcServer
    context: Context
    nats: NatsMessaging
    transport: NatsTransport
    core: Core
    files: DiskFiles
    clock: Clock
    version: str
    started_ns: int
    is_ready: Callable[[], bool]
    tls: ServerTls | None
    identities: Identities
    access: Enforcement

    def broker_samples(self) -> Mapping[str, Sample]:
        """Return the samples of the broker."""
        partitions = self.node.partitions.values()
        stats = self.grpc.stats
        return {
            **self._publish_samples(),
            **self._session_samples(),
            **self._activity_samples(),
            **_group_samples(self.node),
            **cluster_samples(self.core, self.transport, self.clock.now()),
            "build_info": _build_info(self.version),
            "broker_start_time_seconds": self.started_ns,
            "broker_ready": int(self.is_ready()),
            "identity_proofs_total": self.identities.samples(),
            "api_tokens": len(self.node.state.tokens),
            "quotas": len(self.node.state.quotas),
            "quota_delay_seconds_total": dict(self.context.quotas.delays_ns),
            "quota_refusals_total": dict(self.context.quotas.refusal_counts),
            "metadata_applied_index": self.node.state.applied_index,
            "streams": len(self.node.state.streams),
            "streams_locked": self.node.context.data_keys.locked_count,
            "partitions": len(partitions),
            "partitions_offline": sum(bool(p.offline_reason) for p in partitions),
            "partitions_paused": sum(p.is_paused for p in partitions),
            "partitions_readonly": sum(p.is_readonly for p in partitions),
            "publishers": sum(len(p.writer.publishers) for p in partitions),
            "subscriptions": sum(len(p.readers.subscribers) for p in partitions),
            "log_segments": sum(p.log.segment_count for p in partitions),
            "log_bytes": sum(p.log.size_bytes for p in partitions),
            "log_scrubbed_bytes_total": self.core.scrubbing.scrubbed_bytes,
            "disk_total_bytes": self.files.total_bytes(),
            "disk_free_bytes": self.files.free_bytes(),
            "disk_full": int(self.node.context.store.disk.is_full),
            "disk_read_only": int(bool(self.node.context.store.disk.failure)),
            "unknown_directories": self.node.context.store.unknown_count,
            "open_files": self.files.open_count,
            "fsync_seconds": self.node.context.store.sync_times,
            "grpc_requests_total": self._requests(),
            "connections": stats.connections_open,
            "connections_total": stats.connections_total,
            "streams_open": stats.streams_open,
            "buffered_bytes": stats.unsent_held,
            "incomplete_request_bytes": stats.received_held,
            "access_denied_total": dict(
                Counter(self.access.clients.denied_counts)
                + Counter(self.access.operators.denied_counts)
            ),
            "access_enforced": int(self.access.clients.gate.is_closed),
            "access_rules": len(self.node.state.access.rules),
            "grpc_largest_user_shed_total": dict(stats.sheds),
            "grpc_received_bytes_total": stats.bytes_received,
            "grpc_sent_bytes_total": stats.bytes_sent,
            "grpc_protocol_errors_total": {
                str(code): count for code, count in stats.protocol_errors.items()
            },
            "grpc_floods_total": dict(stats.floods),
            "nats_connected": int(self.nats.is_connected),
            "nats_received_messages_total": self.nats.received_count,
            "nats_dropped_messages_total": {
                "paused": sum(p.activity.dropped_count for p in partitions),
                "reserved": sum(p.intake.reserved_count for p in partitions),
                "headers": self.nats.wide_count,
                "ack": self.node.context.lost_ack_count,
                "copy": self.node.listening.lost_copy_count,
            },
        }

    def _session_samples(self) -> Mapping[str, Sample]:
        """Return the broker epoch, once registered, and the expiry of the certificate."""
        samples: dict[str, Sample] = {}
        registered = self.node.state.brokers.get(self.node.broker)
        if registered is not None:
            samples["broker_epoch"] = registered.broker_epoch
        if self.tls is not None and self.tls.expires_at:
            samples["certificate_expiry_timestamp_seconds"] = self.tls.expires_at * SECOND_NS
        return samples

    def _activity_samples(self) -> Mapping[str, Sample]:
        """Return what is pending, stored here and lost of the activity stream."""
        queue = self.node.state.activity
        return {
            "activity_pending_events": len(queue.events),
            "activity_appended_events_total": self.node.activity.appended_count,
            "activity_lost_events": queue.lost_count,
        }

    def _publish_samples(self) -> Mapping[str, Sample]:
        """Return samples of publishing: ack latencies, pending acks and refusals."""
        context = self.context
        refused = Counter(self.node.context.refused_counts)
        refused.update(context.refused_counts)
        return {
            "append_seconds": self.files.append_times,
            "publish_ack_seconds": self._ack_times(),
            "publish_pending_bytes": self.node.context.unanswered_bytes,
            "publish_rejected_total": {code.lower(): count for code, count in refused.items()},
        }

    def _ack_times(self) -> Mapping[tuple[str, ...], Histogram]:
        """Return ack latencies by the path of the ack and its policy."""
        return {
            ("grpc", "leader"): self.context.leader_ack_times,
            ("grpc", "all"): self.context.all_ack_times,
            ("nats", "leader"): self.node.context.ack_times[POLICY_LEADER],
            ("nats", "all"): self.node.context.ack_times[POLICY_ALL],
        }

    def _requests(self) -> Mapping[tuple[str, ...], int]:
        requests = self.grpc.stats.requests
        return {(method, str(code)): count for (method, code), count in requests.items()}

    def stream_samples(self) -> Iterable[tuple[str, Mapping[str, Sample]]]:
        """Yield samples of every stream, over the partitions that this broker leads."""
        by_stream: dict[str, list[Partition]] = {}
        for partition in self.node.partitions.values():
            by_stream.setdefault(partition.stream, []).append(partition)
        now = self.clock.wall_ns()
        for stream, partitions in by_stream.items():
            yield stream, _stream_sample(partitions, now)

    def partition_samples(self, stream: str) -> Iterable[tuple[int, Mapping[str, int]]] | None:
        """Yield samples of each partition of a stream that this broker leads, read lazily."""
        found = self.node.state.stream(stream)
        if found is None:
            return None
        now = self.clock.wall_ns()
        held = [
            partition for partition in self.node.partitions.values() if partition.stream == stream
        ]
        return ((one.number, _partition_sample(one, now) | _places(found, one)) for one in held)


def _group_samples(node: Node) -> Mapping[str, Sample]:
    """Return the samples of groups: all of the cluster, those coordinated here, and their lag."""
    groups, lags = node.state.groups, node.lags.lags
    shown = with_own_series(lags.by_group, OTHER)
    return {
        "consumer_groups": len(groups),
        "consumer_group_members": sum(len(group.members) for group in groups.values()),
        "consumer_group_members_watched": node.groups.watched_count,
        "consumer_group_members_coordinated": {
            group.group_id: len(group.members)
            for group in groups.values()
            if group.coordinator == node.broker
        },
        "consumer_group_lag_messages": {name: lag.messages for name, lag in shown.items()},
        "consumer_group_lag_seconds": {name: lag.lag_ns for name, lag in shown.items()},
        "consumer_group_overtaken_in_seconds": {
            name: lag.left_ns for name, lag in shown.items() if lag.left_ns is not None
        },
        "consumer_groups_combined": len(lags.by_group) - len(shown.keys() - {OTHER}),
        "consumer_group_partitions_unmeasured": lags.unmeasured_count,
        "consumer_group_partitions_endangered": lags.endangered_count,
    }


def _stream_sample(partitions: Sequence[Partition], now_ns: int) -> Mapping[str, Sample]:
    oldest = [first for p in partitions if (first := _oldest(p)) is not None]
    sample: dict[str, Sample] = {
        "published_messages_total": {
            path: sum(p.activity.received_counts[path] for p in partitions) for path in PATHS
        },
        "published_bytes_total": {
            path: sum(p.activity.received_bytes[path] for p in partitions) for path in PATHS
        },
        "delivered_messages_total": sum(p.activity.delivered_count for p in partitions),
        "delivered_bytes_total": sum(p.activity.delivered_bytes for p in partitions),
        "stream_bytes": sum(p.log.size_bytes for p in partitions),
        "stream_messages": sum(p.log.log_end_offset - p.log.log_start_offset for p in partitions),
        "subscription_lag_messages_max": max(_lag(p) for p in partitions),
        "subscription_lag_seconds_max": max(_lag_ns(p, now_ns) for p in partitions),
    }
    if oldest:
        sample["stream_oldest_timestamp_seconds"] = min(oldest)
    return sample


def _partition_sample(partition: Partition, now_ns: int) -> dict[str, int]:
    log = partition.log
    return {
        "partition_log_start_offset": log.log_start_offset,
        "partition_log_end_offset": log.log_end_offset,
        "partition_high_watermark": log.high_watermark,
        "partition_recovery_point": log.recovery_point,
        "partition_leader_epoch": partition.leader_epoch,
        "partition_bytes": log.size_bytes,
        "partition_segments": log.segment_count,
        "partition_paused": int(partition.is_paused),
        "partition_readonly": int(partition.is_readonly),
        "partition_offline": int(bool(partition.offline_reason)),
        "partition_subscriptions": len(partition.readers.subscribers),
        "partition_subscription_lag_messages_max": _lag(partition),
        "partition_subscription_lag_seconds_max": _lag_ns(partition, now_ns),
        "partition_last_timestamp_seconds": max(0, log.largest_timestamp),
    }


def _places(stream: StreamState, partition: Partition) -> dict[str, int]:
    """Return the number of replicas, and of in-sync replicas."""
    state = stream.partition(partition.number)
    return {
        "partition_replicas": 0 if state is None else len(state.replicas),
        "partition_in_sync_replicas": 0 if state is None else len(state.isr),
    }


def _lag(partition: Partition) -> int:
    """Return the number of committed records not yet delivered to the slowest subscription."""
    committed = partition.log.high_watermark
    return max((committed - s.next_offset for s in partition.readers.subscribers), default=0)


def _lag_ns(partition: Partition, now_ns: int) -> int:
    """Return the age of the oldest record not yet delivered to the slowest subscription."""
    if not partition.readers.subscribers or _lag(partition) <= 0:
        return 0
    slowest = min(s.next_offset for s in partition.readers.subscribers)
    record = last_record_before(partition.log, Offset(slowest + 1))
    return max(0, now_ns - record[1]) if record is not None else 0


def _build_info(version: str) -> Mapping[tuple[str, ...], int]:
    return {(version, API_VERSION, platform.python_version()): 1}


def _oldest(partition: Partition) -> int | None:
    """Return the timestamp of the first record, if in memory; `None` for an empty log."""
    segments = partition.log.segments()
    first = segments[0].first_timestamp if segments else NO_TIMESTAMP
    return None if first == NO_TIMESTAMP else first
