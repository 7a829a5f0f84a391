"""The rights that the page on secure connections gives NATS users, in a real nats-server."""

import asyncio
import re

from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.processes import NatsServer
from liftbridge_testkit.repository import ROOT

PAGE = ROOT / "docs/how-to/secure-connections.md"
BLOCK = re.compile(r"^```text\n(accounts: .*?)^```", re.MULTILINE | re.DOTALL)
INSIDE = "_LIFTBRIDGE.liftbridge-default.b.a.meta"


async def test_users_without_rights_neither_hear_brokers_nor_speak_to_them(tmp_path):
    (block,) = BLOCK.findall(PAGE.read_text())
    config = block.replace("$BROKER_PASSWORD", "one").replace("$APP_PASSWORD", "two")
    refused = []

    async def note(error):
        refused.append(str(error))

    with NatsServer(tmp_path, config=config) as server:
        async with (
            nats_client(server.url, user="broker", password="one") as broker,
            nats_client(server.url, user="app", password="two", error_cb=note) as app,
        ):
            heard_by_app = await app.subscribe(">")
            heard_by_broker = await broker.subscribe("_LIFTBRIDGE.>")
            await app.subscribe(INSIDE)
            await settled(broker)
            await settled(app)
            await broker.publish(INSIDE, b"vote")
            await app.publish(INSIDE, b"forged")
            await app.publish("orders", b"three apples")
            await settled(broker)
            await settled(app)
            assert (await heard_by_broker.next_msg(timeout=10)).data == b"vote"
            assert heard_by_broker.pending_msgs == 0
            seen = []
            while heard_by_app.pending_msgs:
                seen.append((await heard_by_app.next_msg(timeout=10)).subject)
            assert [one for one in seen if not one.startswith("_INBOX.")] == ["orders"]
            async with asyncio.timeout(10):
                while len(refused) < 2:
                    await settled(app)
    assert sum("permissions violation" in one.lower() for one in refused) >= 2
