"""Master keys of encrypted streams, on the port for operators."""

from liftbridge_client import admin_model as model
from liftbridge_client.aio.admin.calls import AdminCalls
from liftbridge_client.core.arguments import checked_calls
from liftbridge_proto.ext.v1 import admin_pb2


@checked_calls
class MasterKeys:
    """Master keys, which wrap the data keys of encrypted streams; from `AdminClient.keys`."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def status(self) -> tuple[model.MasterKeyStatus, ...]:
        """List the master keys of encrypted streams, with the brokers that have them."""
        response = await self._calls.call(
            "KeysStatus", admin_pb2.KeysStatusRequest(), admin_pb2.KeysStatusResponse
        )
        return model.keys_of(response)

    async def rotate(self, master_key: str) -> int:
        """Choose the master key that wraps data keys from now on.

        Return the number of data keys that are still wrapped by another one; see `rewrap`.

        Raises:
            FailedPreconditionError: A broker with encrypted replicas has not reported the key.
        """
        request = admin_pb2.RotateKeysRequest(master_key=master_key)
        response = await self._calls.call("RotateKeys", request, admin_pb2.RotateKeysResponse)
        return response.left

    async def rewrap(self) -> model.RewrappedKeys:
        """Rewrap up to 256 data keys with the chosen master key; repeat it while any are left."""
        response = await self._calls.call(
            "RewrapKeys", admin_pb2.RewrapKeysRequest(), admin_pb2.RewrapKeysResponse
        )
        return model.RewrappedKeys(response.rewrapped, response.left)
