"""Settings of streams as the brokers report them."""

from liftbridge_operator.model.stream import StreamConfig
from liftbridge_operator.streams.wire import observed
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2


def test_every_setting_of_a_resource_is_read_from_what_brokers_report():
    options = data_pb2.StreamOptions(
        fsync_policy=data_pb2.FSYNC_POLICY_AUTO, unclean_mode=data_pb2.UNCLEAN_MODE_MANUAL
    )
    described = data_pb2.StreamDescription(
        settings=api_pb2.CreateStreamRequest(name="orders"), options=options
    )
    found = observed([described], [])["orders"]
    assert set(found.settings) == set(StreamConfig.model_fields)
