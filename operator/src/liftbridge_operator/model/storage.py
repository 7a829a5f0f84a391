"""Volumes of brokers: their kind, their changes, and what happens to unused ones."""

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
            "the size of a volume must be more than 0 bytes",
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
        description="Size of the volume. Volumes grow when it is raised, and keep their size when "
        "it is lowered."
    )
    storage_class_name: ObjectName | None = option(
        "Storage class; defaults to the default class of the cluster. Cannot be changed."
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
    """What happens to volumes that are no longer used."""

    RETAIN = "Retain"
    DELETE = "Delete"


class VolumeRetention(Model):
    """What happens to volumes that are no longer used."""

    when_deleted: VolumeFate = Field(
        default=VolumeFate.RETAIN,
        description="Volumes of a cluster whose resource is deleted. A new cluster of the same "
        "name reuses retained ones.",
    )
    when_scaled: VolumeFate = Field(
        default=VolumeFate.RETAIN,
        description="Volume of a removed broker, after its data is on others.",
    )


class Storage(Model):
    """Where brokers keep what must survive a restart."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "storage-kind-immutable",
            "self.ephemeral == oldSelf.ephemeral",
            "storage cannot be changed between ephemeral and persistent",
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
            "ephemeral storage takes no raft volume and no class",
            field=".ephemeral",
            reason=RuleReason.FORBIDDEN,
        ),
    )
    data: Volume = Field(description="Volume with the logs of all partitions.")
    raft: Volume | None = option(
        "Separate volume for metadata, away from the load on `data`; by default `data` holds it. "
        "Cannot be added or removed."
    )
    ephemeral: bool = Field(
        default=False,
        description="Whether brokers lose all data with their pod; for tests. `data.size` then "
        "limits the directory. Cannot be changed.",
    )
    retention: VolumeRetention = section(
        VolumeRetention, "What happens to volumes that are no longer used."
    )
