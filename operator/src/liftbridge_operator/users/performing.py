"""Carry out the action of a user at the brokers and in its Secret."""

from collections.abc import Mapping

from liftbridge_operator.cluster.certificates.port import Issuer, Pair
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.kube.kinds import SECRETS
from liftbridge_operator.kube.port import Fence, Kube, Object, Preconditions
from liftbridge_operator.model import names
from liftbridge_operator.model.catalogue.names import EventReason
from liftbridge_operator.streams.port import BrokersError, SilentError
from liftbridge_operator.users.actions import (
    ChangeRules,
    IssueCertificate,
    MakeToken,
    OfBrokers,
    OfSecret,
    RevokeToken,
    SetQuota,
    WriteSecret,
)
from liftbridge_operator.users.clusters import Cluster
from liftbridge_operator.users.marks import mark_of
from liftbridge_operator.users.observation import NO_LIMITS, Resource, Seen
from liftbridge_operator.users.port import UserBrokers
from liftbridge_operator.users.rules import text_of
from liftbridge_operator.users.secrets import (
    TOKEN_KEY,
    credential_of,
    files_of,
    former_of,
    kept_files,
    secret_of,
    token_id_of,
)

Event = tuple[EventReason, Mapping[str, object]]


class Performer:
    """Carries out one action.

    Args:
        kube: The API server.
        issuer: Makes certificates.
        fence: Checked right before each change at the brokers.
    """

    def __init__(self, kube: Kube, issuer: Issuer, fence: Fence) -> None:
        self._kube = kube
        self._issuer = issuer
        self._fence = fence

    async def perform(
        self,
        cluster: Cluster,
        resource: Resource,
        seen: Seen,
        action: OfBrokers | OfSecret,
        secret: Object | None,
    ) -> Event | None:
        """Carry out an action.

        Args:
            cluster: The cluster, which is connected.
            resource: The `LiftbridgeUser`.
            seen: The observation that led to the action.
            action: The action.
            secret: The Secret as read; None for none.

        Returns:
            The Event that reports it; None for none.

        Raises:
            BrokersError: It was not done, or it is not known whether it was.
            KubeError: The Secret was not written, or it is not known whether it was.
        """
        brokers = cluster.brokers
        assert brokers is not None
        self._fence.check(resource.namespace)
        match action:
            case ChangeRules():
                return await self._change_rules(brokers, resource, action)
            case SetQuota():
                if action.limits != NO_LIMITS or seen.limits is not None:
                    await brokers.set_quota(resource.principal, action.limits)
                return _changed(resource, "quota", is_drift=action.is_drift)
            case RevokeToken():
                await brokers.revoke_token(action.token_id, after_s=action.after_s)
                return None
            case MakeToken():
                return await self._make_token(brokers, resource, seen, action, secret)
            case IssueCertificate():
                return await self._issue(cluster, resource, seen, action, secret)
            case WriteSecret():
                assert resource.spec is not None
                held = credential_of(resource.spec, files_of(secret))
                await self._write(resource, seen, held, secret, former_of(secret))
                return None

    async def _change_rules(
        self, brokers: UserBrokers, resource: Resource, action: ChangeRules
    ) -> Event | None:
        if not action.granted and not action.revoked:
            return None  # the status alone changed
        await brokers.change_rules(
            resource.principal, granted=action.granted, revoked=action.revoked
        )
        changes = [
            f"{verb} {text_of(rules)}"
            for verb, rules in (("granted", action.granted), ("revoked", action.revoked))
            if rules
        ]
        return _changed(resource, "; ".join(changes), is_drift=action.is_drift)

    # -- credentials --------------------------------------------------------------------------

    async def _make_token(
        self,
        brokers: UserBrokers,
        resource: Resource,
        seen: Seen,
        action: MakeToken,
        secret: Object | None,
    ) -> Event:
        made = await brokers.create_token(
            resource.principal, mark_of(resource.uid), lifetime_s=action.lifetime_s
        )
        former = token_id_of(files_of(secret).get(TOKEN_KEY, b""))
        try:
            await self._write(resource, seen, {TOKEN_KEY: made.secret.encode()}, secret, former)
        except KubeError:
            await _give_up(brokers, made.token_id)
            raise
        return _issued(resource, "a token", seen.now_s + action.lifetime_s)

    async def _issue(
        self,
        cluster: Cluster,
        resource: Resource,
        seen: Seen,
        action: IssueCertificate,
        secret: Object | None,
    ) -> Event:
        """Issue a certificate with the authority that was observed."""
        name = names.authority(cluster.key.name)
        held = files_of(await self._kube.get(SECRETS, cluster.key.namespace, name))
        signer = Pair(held.get(names.CA_KEY, b""), held.get(names.AUTHORITY_KEY, b""))
        if not self._issuer.fits(signer) or seen.offer.authority not in self._issuer.describe(
            signer.cert
        ):
            raise SilentError(f"Secret {name} has changed")
        made = self._issuer.issue_client(
            signer,
            resource.principal,
            not_before_s=action.begins_s,
            not_after_s=action.ends_s,
        )
        files = {names.CERT_KEY: made.cert, names.KEY_KEY: made.key}
        await self._write(resource, seen, files, secret, former_of(secret))
        return _issued(resource, "a certificate", action.ends_s)

    async def _write(
        self,
        resource: Resource,
        seen: Seen,
        credential: Mapping[str, bytes],
        live: Object | None,
        former_id: str,
    ) -> None:
        """Create the Secret, or replace what it has."""
        spec = resource.spec
        assert spec is not None
        body = secret_of(resource, {**kept_files(spec, seen.offer), **credential}, former_id)
        if live is None:
            await self._kube.create(body)
            return
        changes = dict.fromkeys(live.get("data") or {}) | body["data"]
        annotations = {"annotations": body["metadata"]["annotations"]}
        await self._kube.patch(
            SECRETS,
            resource.namespace,
            resource.secret_name,
            {"metadata": annotations, "data": changes},
            preconditions=Preconditions.of(live),
        )


async def _give_up(brokers: UserBrokers, token_id: str) -> None:
    """End a token that nobody has got, best effort: the next pass notices one that is left."""
    try:
        await brokers.revoke_token(token_id, after_s=0)
    except BrokersError:
        return


def _changed(resource: Resource, changes: str, *, is_drift: bool) -> Event:
    reason = EventReason.DRIFT_REPAIRED if is_drift else EventReason.ACCESS_CHANGED
    return reason, {"principal": resource.principal, "changes": changes}


def _issued(resource: Resource, what: str, ends_s: int) -> Event:
    return EventReason.CREDENTIAL_ISSUED, {
        "credential": what,
        "principal": resource.principal,
        "secret": resource.secret_name,
        "time": moment_text(ends_s * 1_000),
    }
