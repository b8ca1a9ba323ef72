"""The environment of a measurement."""

import subprocess

from txl_lightning import machine


def test_commit_is_that_of_the_code_and_marked_where_files_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    assert machine.commit() is None

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert machine.commit() is None
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    git("tag", "v1")
    assert machine.commit() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("b")
    assert machine.commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert machine.commit() is None
