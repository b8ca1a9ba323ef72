"""A SLURM of one node, whose daemons are processes of the tests."""

import os
import shutil
import subprocess
from pathlib import Path

from lightning.fabric.plugins.environments.lightning import find_free_network_port

from tests.helpers.processes import REPOSITORY, Processes
from tests.helpers.waiting import wait_until

# No key and no accounting; more CPUs than the machine has, so that jobs run side by side. A job is
# requeued when the credential of its last start is over, which takes two minutes by default.
CONFIG = """ClusterName=tests
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=localhost CPUs=16 RealMemory=4000
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""
SYSTEM = "/usr/sbin"  # where Debian installs the daemons, which not every PATH has


def explain_missing_slurm() -> str | None:
    """Return why SLURM cannot be started here; None if it can."""
    path = f"{os.environ['PATH']}{os.pathsep}{SYSTEM}"
    names = ("slurmctld", "slurmd", "sbatch", "srun")
    missing = [name for name in names if shutil.which(name, path=path) is None]
    if missing:
        return f"slurm-wlm is not installed: no {', '.join(missing)}"
    return None if os.geteuid() == 0 else "slurmd starts jobs as root only"


class Slurm:
    """The daemons, and commands of a user in the folder of a job."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        for name in ("state", "spool"):
            (folder / name).mkdir()
        # The same processes would end after each test.
        self.processes = type(processes)()
        ports = {"port": find_free_network_port(), "node_port": find_free_network_port()}
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, **ports))
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] = f"{os.environ['PATH']}{os.pathsep}{SYSTEM}"
        self.environment["PYTHONPATH"] = REPOSITORY
        # So that what a job has left ends with the daemons.
        self.environment["STARTED_BY"] = self.processes.mark
        for words in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            self.processes.start(words, env=self.environment, cwd=folder, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.call("sinfo", "-h", "-o", "%t") == "idle")

    def call(self, *words: object, cwd: Path | None = None) -> str:
        options = {"capture_output": True, "text": True, "env": self.environment, "cwd": cwd}
        return subprocess.run([*map(str, words)], check=False, **options).stdout.strip()

    def submit(self, cwd: Path, *words: object) -> str:
        """Submit a script in a folder; return the number of the job."""
        job = self.call("sbatch", "--parsable", *words, cwd=cwd)
        assert job.isdecimal()
        return job

    def find_states(self, job: str) -> list[str]:
        """Return the states of a job, or of all tasks of an array."""
        lines = self.call("scontrol", "show", "job", job, "-o").splitlines()
        return [line.partition("JobState=")[2].split()[0] for line in lines]

    def end(self) -> None:
        self.call("scancel", "--user=root")
        # A daemon that is killed by SIGABRT leaves a core file.
        for daemon in reversed(self.processes.started):
            daemon.terminate()
            daemon.wait(timeout=60)
        self.processes.end()
