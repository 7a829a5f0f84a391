"""An S3 server as a child process, for tests of archives: SeaweedFS in one process.

It serves S3 and a REST catalog of Iceberg on 127.0.0.1. The first object written to a bucket
creates it.
"""

from __future__ import annotations

import json
import subprocess
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.processes import ProcessError, ServerProcess, free_port, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KEY_ID: Final = "tests"
SECRET: Final = "secret-of-tests"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    # No requests to other machines.
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment of a client of the store."""

OPEN_BUCKET: Final = "open"
"""A bucket that accepts requests without a signature, so that tests can change them in transit."""

SHELL_SECONDS_MAX: Final = 60.0
_PROBE_SECONDS: Final = 1.0


class ObjectStore(ServerProcess):
    """An S3 server.

    Attributes:
        port: Port that serves S3; the same for every start.
        catalog_port: Port that serves the catalog of Iceberg.
    """

    def __init__(self, work_dir: Path, *, name: str = "objects") -> None:
        """Describe a server; `start` runs it.

        Args:
            work_dir: Directory for the log, the configuration and the data.
            name: Distinguishes several servers in one directory.
        """
        super().__init__(name, work_dir, environment=None)
        self.port = free_port()
        self.catalog_port = free_port()
        self._inner = {part: (free_port(), free_port()) for part in ("master", "volume", "filer")}
        self._grpc_port = free_port()

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def catalog_url(self) -> str:
        """Address of the catalog of Iceberg."""
        return f"http://127.0.0.1:{self.catalog_port}"

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        data = self.work_dir / f"{self.name}-data"
        data.mkdir(exist_ok=True)
        config = self.work_dir / f"{self.name}.json"
        credentials = [{"accessKey": KEY_ID, "secretKey": SECRET}]
        open_to_all = [f"{act}:{OPEN_BUCKET}" for act in ("Read", "Write", "List")]
        identities = [
            {"name": KEY_ID, "credentials": credentials, "actions": ["Admin"]},
            {"name": "anonymous", "actions": open_to_all},
        ]
        config.write_text(json.dumps({"identities": identities}), encoding="utf-8")
        inner = [
            flag
            for part, (port, grpc_port) in self._inner.items()
            for flag in (f"-{part}.port={port}", f"-{part}.port.grpc={grpc_port}")
        ]
        # Sockets in the data directory, because the default is a shared directory. Names of sockets
        # must be short, so the path is relative to the working directory.
        return [
            str(program("weed")),
            "-logtostderr=true",
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *inner,
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            # Each bucket has several volumes; they use no space while empty.
            "-volume.max=100",
            "-filer",
            f"-filer.localSocket={self.name}-filer.sock",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.port.grpc={self._grpc_port}",
            f"-s3.port.iceberg={self.catalog_port}",
            "-s3.port.lance=0",
            f"-s3.config={config}",
            f"-s3.localSocket={self.name}-s3.sock",
        ]

    def make_table_bucket(self, name: str) -> None:
        """Create a bucket in which the catalog keeps Iceberg tables; `s3://name` is a warehouse.

        Raises:
            ProcessError: The bucket was not created.
        """
        peers = [
            f"-{part}=127.0.0.1:{port}.{grpc_port}"
            for part, (port, grpc_port) in self._inner.items()
            if part != "volume"
        ]
        done = subprocess.run(
            [str(program("weed")), "shell", *peers],
            input=f"s3tables.bucket -create -name {name} -account {KEY_ID}\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=SHELL_SECONDS_MAX,
            cwd=self.work_dir,
        )
        if f"bucket/{name}" not in done.stdout:
            raise ProcessError(f"{self.name}: no table bucket {name}: {done.stdout}{done.stderr}")

    def is_ready(self) -> bool:
        """Return whether S3 is served and accepts writes."""
        ports = (self.port, self.catalog_port)
        paths = ("/readyz", "/v1/config")
        return all(_answers(port, path) for port, path in zip(ports, paths, strict=True))


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
