"""Volumes of brokers: what they are, how they change, what becomes of them."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from liftbridge_operator.model.base import (
    ListOf,
    Model,
    Rule,
    RuleReason,
    immutable,
    option,
    section,
)
from liftbridge_operator.model.values import ObjectName, Size


class AccessMode(StrEnum):
    """How a volume may be mounted."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class Volume(Model):
    """One persistent volume of each broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "volume-size-positive",
            "quantity(string(self.size)).isGreaterThan(quantity('0'))",
            "a volume has more than 0 bytes",
            field=".size",
        ),
        immutable("volume-class-immutable", "storageClassName", "the storage class of a volume"),
        Rule(
            "volume-modes-immutable",
            "self.accessModes == oldSelf.accessModes",
            "the access modes of a volume cannot be changed",
            field=".accessModes",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    size: Size = Field(
        description="Size of the volume. Volumes grow when it is raised, and keep what they have "
        "when it is lowered."
    )
    storage_class_name: ObjectName | None = option(
        "Storage class; the default class of the cluster without it. Cannot be changed."
    )
    volume_attributes_class_name: ObjectName | None = option(
        "VolumeAttributesClass, such as one with more throughput. Can be changed."
    )
    access_modes: Annotated[tuple[AccessMode, ...], ListOf(1, items_min=1)] = Field(
        default=(AccessMode.READ_WRITE_ONCE,),
        description="How the volume may be mounted. Cannot be changed.",
        json_schema_extra={"default": ["ReadWriteOnce"]},
    )


class VolumeFate(StrEnum):
    """What becomes of volumes that nobody uses any more."""

    RETAIN = "Retain"
    DELETE = "Delete"


class VolumeRetention(Model):
    """What becomes of volumes that nobody uses any more."""

    when_deleted: VolumeFate = Field(
        default=VolumeFate.RETAIN,
        description="Volumes of a cluster whose resource is deleted. Kept ones are found again by "
        "a cluster of the same name.",
    )
    when_scaled: VolumeFate = Field(
        default=VolumeFate.RETAIN,
        description="Volume of a broker that left, after its data is on others.",
    )


class Storage(Model):
    """Where brokers keep what must survive a restart."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "storage-kind-immutable",
            "self.ephemeral == oldSelf.ephemeral",
            "ephemeral and persistent storage cannot be exchanged",
            field=".ephemeral",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "storage-raft-immutable",
            "has(self.raft) == has(oldSelf.raft)",
            "a separate volume for metadata cannot be added or removed",
            field=".raft",
            reason=RuleReason.FORBIDDEN,
        ),
        Rule(
            "storage-ephemeral-alone",
            "!self.ephemeral || !(has(self.raft) || has(self.data.storageClassName) || "
            "has(self.data.volumeAttributesClassName))",
            "ephemeral storage has no raft volume and no class",
            field=".ephemeral",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    data: Volume = Field(description="Volume with the logs of all partitions.")
    raft: Volume | None = option(
        "Volume of its own for metadata, away from the load on `data`, which holds them without "
        "it. Cannot be added or removed."
    )
    ephemeral: bool = Field(
        default=False,
        description="Whether brokers lose everything with their pod; for tests. `data.size` then "
        "bounds the directory. Cannot be changed.",
    )
    retention: VolumeRetention = section(
        VolumeRetention, "What becomes of volumes that nobody uses any more."
    )
