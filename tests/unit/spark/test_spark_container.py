"""What containers of the image become: the command, an executor, or a driver."""

import sys
from pathlib import Path

import pytest

from pyspark_liftbridge.container import (
    BACKEND,
    StartError,
    command,
    driver_command,
    executor_command,
)

HOME = "/opt/spark"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "p-exec-1",
    "SPARK_EXECUTOR_MEMORY": "819m",
    "SPARK_JAVA_OPT_0": "-Da=0",
    "SPARK_JAVA_OPT_10": "-Da=10",
    "SPARK_JAVA_OPT_2": "-Da=2",
}


def test_container_is_the_command_by_itself():
    liftbridge = str(Path(sys.executable).with_name("liftbridge"))
    assert command(["spark", "archive"], {}, HOME) == [liftbridge, "spark", "archive"]
    assert command([], {}, HOME) == [liftbridge]


def test_executor_is_begun_with_what_spark_says():
    words = executor_command(EXECUTOR, "/java", HOME)
    assert words[:6] == ["/java", "-Da=0", "-Da=2", "-Da=10", "-Xms819m", "-Xmx819m"]
    assert words[6:9] == ["-cp", "/opt/spark/conf:/opt/spark/jars/*", BACKEND]
    options = dict(zip(words[9::2], words[10::2], strict=True))
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "p-exec-1",
    }


def test_driver_binds_to_the_address_of_its_pod():
    words = driver_command({"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"}, HOME, ["job.py", "a"])
    assert words[0] == "/opt/spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.0.0.1" in words
    assert words[-4:] == ["--deploy-mode", "client", "job.py", "a"]


@pytest.mark.parametrize("name", [one for one in EXECUTOR if "OPT" not in one])
def test_what_is_missing_is_named(name):
    given = {one: value for one, value in EXECUTOR.items() if one != name}
    with pytest.raises(StartError, match=name):
        executor_command(given, "/java", HOME)


def test_driver_without_an_address_is_refused():
    with pytest.raises(StartError, match="SPARK_DRIVER_BIND_ADDRESS"):
        driver_command({}, HOME, [])
