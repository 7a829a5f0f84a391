"""Labels and annotations by which the operator finds what it wrote, and hears what is asked."""

from typing import Final

CLUSTER_ID_LABEL: Final = "liftbridge.io/cluster-id"
"""Of claims, ConfigMap and Secrets that are kept: the cluster they belong to."""

RETIRED_SINCE: Final = "liftbridge.io/retired-since"
"""Annotation of a claim whose broker was removed: when."""

GOOD_REVISION: Final = "liftbridge.io/good-revision"
"""Annotation of the set: the last template with which a pod became ready."""

BAD_REVISION: Final = "liftbridge.io/bad-revision"
"""Annotation of the set: the template that was taken back."""

KEPT: Final = "liftbridge.io/kept"
"""Annotation of a pod: the restart that was given up before it began."""

APPROVE: Final = "liftbridge.io/approve"
"""Annotation of the resource: hash of the plan that a person approves."""
