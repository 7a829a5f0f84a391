"""`inspect` and `verify` tell what lies in a data directory and change nothing in it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from liftbridge_broker.adapters.disk.files import DiskFiles
from liftbridge_broker.adapters.disk.offline import VerifyRun, inspect_lines
from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.ports.metadata import ProposalToken, Urgency
from liftbridge_broker.wire.metadata import encode_command
from liftbridge_testkit.lone_metadata import open_lone, pump
from liftbridge_testkit.memory_files import MemoryFiles
from liftbridge_testkit.stores import START_WALL_NS, StoreBed, key_of

A, B = key_of(1), key_of(2, 3)
METADATA_ENTRIES = 9
OPTIONS = StreamOptions(fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=300)


def filled(root: Path, *, stops: bool = True) -> MemoryFiles:
    """A data directory that a store left: A with six records in three segments, B with one."""
    bed = StoreBed()
    bed.start({A: OPTIONS, B: OPTIONS})
    for number in range(6):
        bed.append(A, [b"value %d" % number + b"." * 100])
        bed.pump()
        bed.commit(A)
    bed.append(B, [b"one"])
    bed.pump()
    bed.advance(1_000_000_000)
    log, _ = open_lone(bed.files)
    for number in range(METADATA_ENTRIES):
        command = encode_command(
            CreateStream(name=StreamName(f"s{number}"), subject="s", creation_timestamp=number)
        )
        log.propose(ProposalToken(number + 1), command, Urgency.ORDINARY)
        pump(bed.files, log)
    log.close()
    if stops:
        bed.store.close(broker_epoch=7)
    save(bed.files, root)
    return bed.files


def save(files: MemoryFiles, root: Path) -> None:
    for path in files.paths():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files.content(path))


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def verified(root: Path, output: str = "table") -> tuple[list[str], bool]:
    run = VerifyRun(root, output=output)
    lines = list(run.lines())
    return lines, run.is_whole


def log_files(root: Path) -> list[Path]:
    return sorted(root.glob("streams/0000000001-stream/0/*.log"))


def metadata_logs(root: Path) -> list[Path]:
    return sorted((root / "metadata").glob("*.wal"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_inspect_shows_every_log_and_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    before = snapshot(tmp_path)
    lines = inspect_lines(tmp_path, output="table")
    assert lines[1:5] == [
        "identity   data-dir-1",
        "broker     broker-1",
        "last stop  clean, broker epoch 7",
        f"journal    {(tmp_path / 'journal').stat().st_size} bytes",
    ]
    (path,) = metadata_logs(tmp_path)
    assert lines[5:9] == [
        f"metadata   10 entries from 1 to 10, {path.stat().st_size} bytes",
        "snapshot   none",
        "streams    0 with 0 partitions",
        "",
    ]
    rows = [line.split() for line in lines[-3:]]
    assert rows[0][:4] == ["STREAM", "PARTITION", "START", "END"]
    assert rows[1][:8] == ["stream", "0", "0", "6", "6", "6", "3", "6"]
    assert rows[2][:8] == ["stream", "3", "0", "1", "0", "1", "1", "1"]
    assert rows[1][10] == "2023-11-14T22:13:20Z"
    assert snapshot(tmp_path) == before


def test_inspect_as_json_has_every_segment(tmp_path: Path) -> None:
    filled(tmp_path)
    report = json.loads("\n".join(inspect_lines(tmp_path, output="json")))
    assert report["is_clean"] is True
    (first, second) = report["logs"]
    assert (first["stream_id"], second["partition"]) == (1, 3)
    assert [segment["base"] for segment in first["segments"]] == [0, 2, 4]
    assert first["segments"][0]["first_timestamp"] == START_WALL_NS + 1_000
    assert first["segments"][0]["has_index"] is True
    assert first["leader_epochs"] == [{"epoch": 1, "start_offset": 0}]


@pytest.mark.parametrize("act", [inspect_lines, verified])
def test_directory_that_was_never_used_is_refused(
    tmp_path: Path, act: Callable[..., object]
) -> None:
    options = {"output": "table"} if act is inspect_lines else {}
    with pytest.raises(FilesError, match="is not the data directory of a broker"):
        act(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match="is not a directory"):
        inspect_lines(tmp_path / "none", output="table")


def test_running_broker_keeps_both_tools_out(tmp_path: Path) -> None:
    filled(tmp_path)
    files = DiskFiles(tmp_path, post=lambda _: None, deliver=lambda _: None)
    try:
        with pytest.raises(FilesError, match="is in use by process"):
            inspect_lines(tmp_path, output="table")
        with pytest.raises(FilesError, match="is in use by process"):
            verified(tmp_path)
    finally:
        files.shut_down()


def test_whole_directory_is_whole(tmp_path: Path) -> None:
    filled(tmp_path)
    before = snapshot(tmp_path)
    lines, is_whole = verified(tmp_path)
    assert is_whole
    assert len(lines) == 1
    assert lines[0].startswith("whole: 2 logs, 4 segments, 7 records, ")
    assert lines[0].endswith(" bytes, 10 metadata entries")
    assert snapshot(tmp_path) == before


def test_every_flipped_byte_of_a_log_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    path = log_files(tmp_path)[0]
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        flip(path, position)
        lines, is_whole = verified(tmp_path)
        assert not is_whole, position
        assert lines[0].startswith(f"error: {path.relative_to(tmp_path)}")
        path.write_bytes(whole)


def test_every_flipped_byte_of_the_metadata_log_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    (path,) = metadata_logs(tmp_path)
    whole = path.read_bytes()
    # Behind the last entry stands a mark, which the next start may do without.
    mark = whole.rindex(b"LBRH")
    for position in range(0, len(whole), 11):
        flip(path, position)
        before = snapshot(tmp_path)
        lines, is_whole = verified(tmp_path)
        assert is_whole is (position >= mark), position
        severity = "note" if is_whole else "error"
        assert lines[0].startswith(f"{severity}: metadata"), lines
        inspect_lines(tmp_path, output="table")
        assert snapshot(tmp_path) == before
        path.write_bytes(whole)


def test_lost_metadata_is_an_error_where_logs_are(tmp_path: Path) -> None:
    filled(tmp_path)
    (path,) = metadata_logs(tmp_path)
    path.unlink()
    lines, is_whole = verified(tmp_path)
    assert not is_whole
    assert lines[0] == "error: metadata: metadata log: no log file is left"
    shown = inspect_lines(tmp_path, output="table")
    assert "metadata   metadata log: no log file is left" in shown
    report = json.loads("\n".join(inspect_lines(tmp_path, output="json")))
    assert report["metadata"]["damage"] == "metadata log: no log file is left"


def remove_middle(root: Path) -> None:
    log_files(root)[1].unlink()


def cut_synced_tail(root: Path) -> None:
    path = log_files(root)[-1]
    path.write_bytes(path.read_bytes()[:-40])


def damage_identity(root: Path) -> None:
    flip(root / "identity", 14)


def damage_journal(root: Path) -> None:
    flip(root / "journal", 40)


def swap_segments(root: Path) -> None:
    first, second, _ = log_files(root)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (remove_middle, "begins at offset 4, not at 2: records are missing"),
        (cut_synced_tail, "batch is cut off; good up to offset 5"),
        (damage_identity, "error: identity: missing or damaged"),
        (damage_journal, "error: journal: 1 damaged places: state of some logs may be lost"),
        (swap_segments, "batch begins at offset 2, not at 0; good up to offset 0"),
    ],
)
def test_damage_is_an_error(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    filled(tmp_path)
    damage(tmp_path)
    lines, is_whole = verified(tmp_path)
    assert not is_whole
    assert any(text in line for line in lines), lines


def test_tail_that_was_never_synced_is_a_note(tmp_path: Path) -> None:
    filled(tmp_path, stops=False)
    path = log_files(tmp_path)[-1]
    path.write_bytes(path.read_bytes() + b"LB torn")
    (path.parent / "00000000000000000002.log.cleaned").write_bytes(b"x")
    (tmp_path / "strange").write_bytes(b"x")
    lines, is_whole = verified(tmp_path)
    assert is_whole
    assert [line.split(":")[0] for line in lines] == ["note", "note", "note", "whole"]
    report = json.loads("\n".join(inspect_lines(tmp_path, output="json")))
    assert report["logs"][0]["segments"][-1]["damage"]
    assert report["unknown"] == ["strange"]


def test_old_clean_marker_is_a_note(tmp_path: Path) -> None:
    files = filled(tmp_path)
    bed = StoreBed(files=files)
    bed.start({A: OPTIONS, B: OPTIONS})
    marker = (tmp_path / "clean").read_bytes()
    bed.advance(1_000_000_000)
    save(files, tmp_path)
    (tmp_path / "clean").write_bytes(marker)
    lines, is_whole = verified(tmp_path)
    assert is_whole
    assert lines[0] == "note: clean: of another journal: it is ignored"


def test_verify_as_json_gives_one_object_a_line(tmp_path: Path) -> None:
    filled(tmp_path)
    remove_middle(tmp_path)
    lines, _ = verified(tmp_path, "json")
    objects = [json.loads(line) for line in lines]
    assert objects[0]["kind"] == "finding"
    assert objects[0]["severity"] == "error"
    assert objects[-1]["kind"] == "summary"
    assert objects[-1]["errors"] == 1


def test_read_only_volume_is_enough(tmp_path: Path) -> None:
    filled(tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert verified(tmp_path)[1]
    finally:
        for path in tmp_path.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
