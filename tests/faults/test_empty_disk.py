"""Runs whose machine is lost with its disk, and that go on from their mirror elsewhere."""

import os
import shutil
import sys
import time

import pytest
from lightning.fabric.plugins.environments.lightning import find_free_network_port

pytestmark = pytest.mark.faults

BUCKET = "runs-of-a-test"


@pytest.fixture
def lose_disk(place):
    def lose() -> None:
        for name in ("runs", "data"):
            shutil.rmtree(place.folder / name)

    return lose


@pytest.fixture
def s3(processes, tmp_path):
    """Start an S3 server; return the environment of its users and the URL of an empty folder."""
    reason = "no boto3: pip install 'moto[server]'"
    boto3 = pytest.importorskip("boto3", reason=reason)
    botocore = pytest.importorskip("botocore", reason=reason)
    port = find_free_network_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    environment = keys | {"AWS_DEFAULT_REGION": "us-east-1", "NO_PROXY": "127.0.0.1"}
    environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "server.log").open("wb") as log:
        server = processes.start(command, env=os.environ | environment, stdout=log, stderr=log)
    client = boto3.client(
        "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
        aws_access_key_id="key", aws_secret_access_key="secret",
    )  # fmt: skip
    stop = time.monotonic() + 120
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            break
        # The server does not answer yet.
        except botocore.exceptions.BotoCoreError:
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < stop
            time.sleep(0.1)
    return environment, f"s3://{BUCKET}/mine"


FAULTS = ["TERM:5", "KILL:12", "KILL:upload@14", "KILL:rm_file@20", "KILL:load_state@24"]


def test_run_that_loses_its_disk_again_and_again_is_bit_identical_to_an_uninterrupted_one(
    place, whole, lose_disk
):
    """Killed between steps and in an upload: before it, after its state, and as it cleans up."""
    mirror = f"--checkpoint.mirror=file://{place.folder}/mirror"
    printed = []
    for fault in FAULTS:
        ended = place.fit("--resume=auto", mirror, fault=fault)
        assert ended.code == (143 if "TERM" in fault else -9), ended.output
        printed.append(ended.output)
        lose_disk()
    # After SIGTERM, the last upload is finished.
    assert "resume: step 5 of version_0 is fetched from file://" in printed[1]
    ended = place.fit("--resume=auto", mirror)
    assert ended.code == 0, ended.output
    assert "of version_0 is fetched from file://" in ended.output
    place.assert_same(whole())


def test_two_processes_go_on_from_the_mirror_to_which_only_the_first_one_copies(
    place, whole, lose_disk
):
    mirror = f"--checkpoint.mirror=file://{place.folder}/mirror"
    for fault in ("KILL:12:0", "KILL:upload@17:0", "KILL:25:1"):
        ended = place.fit("--resume=auto", mirror, fault=fault, ranks=2)
        assert ended.codes[int(fault[-1])] == -9, ended.output
        lose_disk()
    # The second one is not killed, because it never uploads.
    ended = place.fit("--resume=auto", mirror, fault="KILL:upload@28:1", ranks=2)
    assert ended.codes == [0, 0], ended.output
    assert ended.output.count("is fetched from file://") == 1
    place.assert_same(whole(ranks=2))


def test_run_with_a_mirror_in_an_s3_server_loses_its_disk_and_goes_on_bit_for_bit(
    place, whole, lose_disk, s3
):
    environment, url = s3
    mirror = f"--checkpoint.mirror={url}"
    for fault in ("KILL:12", "TERM:17", "KILL:upload@21"):
        ended = place.fit("--resume=auto", mirror, fault=fault, **environment)
        assert ended.code == (143 if "TERM" in fault else -9), ended.output
        lose_disk()
    ended = place.fit("--resume=auto", mirror, **environment)
    assert ended.code == 0, ended.output
    assert f"of version_0 is fetched from {url}" in ended.output
    place.assert_same(whole())


def test_bucket_or_key_that_is_wrong_stops_before_the_first_step_in_one_line(place, s3):
    environment, url = s3
    for target, more in (
        (url.replace(BUCKET, "none"), {}),
        (url, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}),
    ):
        ended = place.fit(f"--checkpoint.mirror={target}", **environment | more)
        [notice, line] = ended.output.splitlines()
        assert notice.startswith("no recipe for a text of ")
        assert (ended.code, line.startswith(f"error: checkpoint.mirror: {target}: cannot be")) == (
            6,
            True,
        ), ended.output
    assert place.lines() == []
