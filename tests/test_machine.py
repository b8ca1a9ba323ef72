"""The environment of a measurement."""

import os
import subprocess

from txl_lightning import machine


def test_commit_is_that_of_the_code_and_marked_where_files_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    # Without the commit that this process already knows.
    find_commit = machine.find_commit.__wrapped__
    assert find_commit() is None
    # Neither a hook's repository nor a user's settings, such as signed commits.
    env = {name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}
    env["GIT_CONFIG_GLOBAL"] = os.devnull

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words]
        how = {"check": True, "capture_output": True, "text": True, "env": env}
        return subprocess.run(command, **how).stdout.strip()

    git("init")
    assert find_commit() is None
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    git("tag", "v1")
    assert find_commit() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("b")
    assert find_commit() == git("rev-parse", "HEAD") + "-dirty"
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert find_commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert find_commit() is None


def test_git_is_asked_once_for_all_pages_of_a_run(tmp_path, monkeypatch):
    known = machine.find_commit()
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    assert machine.find_commit() == known


def test_instructions_are_the_known_flags_of_the_first_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert machine.list_instructions() == ""
    text = "model name\t: A CPU\nflags\t\t: fpu avx2 avx512f amx_bf16\nvmx flags\t: bf16\n"
    machine.CPU_INFO.write_text(text + text.replace("avx2", ""))
    assert machine.list_instructions() == "avx2 avx512f amx_bf16"
    assert machine.find_cpu_name() == "A CPU"
    machine.CPU_INFO.write_text("Features\t: fp asimd bf16\n")
    assert machine.list_instructions() == "asimd bf16"
