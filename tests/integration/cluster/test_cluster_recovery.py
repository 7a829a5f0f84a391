"""A poisoned metadata group is recovered offline, by the steps of the page about it."""

import json
import re
import subprocess
from functools import partial
from pathlib import Path

from liftbridge_broker.adapters.disk.files import LocalFiles
from liftbridge_broker.adapters.disk.offline_metadata import METADATA_DIRECTORY
from liftbridge_broker.model.metadata_log import HardState
from liftbridge_broker.raft.types import TERM_LEAP_MAX
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_proto import api_pb2
from liftbridge_testkit.checker import History, check
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.processes import Broker, program
from liftbridge_testkit.repository import ROOT
from liftbridge_testkit.steady import OwnClientPublisher

STREAM, LATER = "orders", "later"
PAGE = ROOT / "docs/how-to/recover-a-metadata-group.md"
COMMAND = re.compile(r"^ +liftbridge-broker (recover .*)$", re.MULTILINE)
TERMS = {"b1": 1 << 62, "b2": (1 << 62) + 8 * TERM_LEAP_MAX}
"""What somebody told two of three brokers, so that none believes what another one says."""


def create(cluster: ClusterKit, name: str) -> None:
    with cluster["b1"].channel() as channel:
        api(channel).CreateStream(
            api_pb2.CreateStreamRequest(name=name, subject=name, replicationFactor=3), timeout=10
        )
    cluster.until(lambda: len(cluster.partition(name).isr) == 3, "three in sync")


def poison(directory: Path, term: int) -> None:
    """Leave a term as a broker leaves it that believed a vote of nobody."""
    files = LocalFiles(directory, post=lambda _call: None, deliver=lambda _events: None)
    log = RaftLog.open(files, directory=METADATA_DIRECTORY)
    log.append((), HardState(term, None, log.hard_state().commit))
    log.close()
    files.shut_down()


def is_waiting(broker: Broker) -> bool:
    """Whether a broker has said three times, seconds apart, that nobody leads."""
    return broker.log_text().count("awaited='a leader of the metadata group") >= 3


def run(words: str, broker: Broker, snapshot: Path | None = None) -> str:
    """Carry out a command of the page on the directory of a broker; what it printed."""
    given = words.replace("/var/lib/liftbridge", str(broker.data_dir))
    given = re.sub(r"\S+\.snapshot", str(snapshot), given)
    done = subprocess.run(
        [str(program("liftbridge-broker")), *given.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_group_whose_terms_were_raised_by_nobody_is_recovered_without_loss(tmp_path: Path) -> None:
    look, begin, follow = COMMAND.findall(PAGE.read_text())
    with ClusterKit(tmp_path) as cluster:
        create(cluster, STREAM)
        history = History()
        addresses = [broker.address for broker in cluster.brokers.values()]
        publisher = OwnClientPublisher(history.new_publisher(), addresses, STREAM)
        publisher.start()
        publisher.wait_for(500)
        publisher.stop()
        cluster.stop()
        for name, term in TERMS.items():
            poison(cluster[name].data_dir, term)

        for broker in cluster.brokers.values():
            broker.spawn()
        for broker in cluster.brokers.values():
            broker.wait_until(partial(is_waiting, broker), "in vain for a leader")
        cluster.stop()

        told = {name: json.loads(run(f"{look} -o json", cluster[name])) for name in cluster.brokers}
        assert {name: told[name]["term"] for name in TERMS} == TERMS
        first = max(told, key=lambda name: (told[name]["good_term"], told[name]["good_index"]))
        assert "which no election can have reached" in "".join(
            run(look, cluster[name]) for name in TERMS
        )

        text = run(begin, cluster[first])
        (path,) = re.findall(r"\S+\.snapshot", text)
        for name in cluster.brokers:
            if name != first:
                run(follow, cluster[name], Path(path))
        cluster.start(*cluster.brokers)
        cluster.until(lambda: len(cluster.partition(STREAM).isr) == 3, "three in sync again")
        create(cluster, LATER)
        assert check(history, cluster.read_log(STREAM)) == []
