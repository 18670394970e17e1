"""Job files: what starts the tasks of an array on a cluster, as text to be saved, looked at and submitted."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.storage.paths import is_remote
from tokshard.tokenization.job_array.options import TASKS_VARIABLE, ArrayOptions, refuse_limits
from tokshard.tokenization.options import TokenizeOptions

IMAGE = "registry.example/tokshard"
_CLAIM = "data"
_RETRIES = 3
_NAME_CHARACTERS = 40


def array_job_file(options: TokenizeOptions, array: ArrayOptions, command: Sequence[str]) -> str:
    """Return a job file that runs a command in the tasks of an array, to be saved, checked and submitted.

    Args:
        options: The options of the command; ``workers`` are the cores of each task.
        array: With ``emit``, the scheduler, and ``tasks``.
        command: The command line of the tasks: ``tokshard tokenize`` and its arguments.

    Returns:
        A script for ``sbatch``, or an Indexed Job for ``kubectl create`` as YAML.

    Raises:
        UsageError: The command cannot be run in tasks.
    """
    if options.workers is None:
        raise UsageError(
            "--emit requires --workers, the number of cores per task", hint="for example, pass --workers 8"
        )
    if "-" in options.input_names:
        raise UsageError(
            "standard input can be read only once, by one process: its units cannot be assigned to tasks",
            hint="write it to a file that all tasks can read",
        )
    if is_remote(options.prefix) and options.local_dir is None:
        raise UsageError(
            f"the tasks require a shared directory in which {options.prefix} is built before its upload",
            hint="pass --local-dir DIR, a directory that all tasks share",
        )
    refuse_limits(options)
    job = _ArrayJob(
        command=tuple(command),
        name=os.path.basename(options.prefix),
        directory=_job_directory(),
        tasks=array.tasks or 1,
        cores=options.workers,
        is_locked=options.lock != "none",
    )
    return _slurm_script(job) if array.emit == "slurm" else _kubernetes_manifest(job, array.image or IMAGE)


@dataclass(frozen=True, slots=True)
class _ArrayJob:
    command: tuple[str, ...]
    name: str
    directory: str
    tasks: int
    cores: int
    is_locked: bool = True

    def __post_init__(self) -> None:
        for word in (*self.command, self.directory):
            try:
                word.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{word!r} is not UTF-8 and cannot be written into a job file") from None

    @property
    def task_command(self) -> tuple[str, ...]:
        return (*self.command[:2], "--array-task", "auto", *self.command[2:])

    @property
    def assembly(self) -> str:
        if self.is_locked:
            return "the last task to finish assembles the output."
        return "run the command with --finish when all tasks have ended."

    @property
    def safe_name(self) -> str:
        words = re.sub("[^a-z0-9]+", "-", self.name.lower()).strip("-")[:_NAME_CHARACTERS].strip("-")
        return f"tokshard-{words}" if words else "tokshard"


def _slurm_script(job: _ArrayJob) -> str:
    command = shlex.join(job.task_command)
    return f"""#!/bin/bash
#SBATCH --job-name={job.safe_name}
#SBATCH --array=0-{job.tasks - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={job.cores}
#SBATCH --mem-per-cpu=1G
#SBATCH --requeue
#SBATCH --open-mode=append

# Each task encodes its share of the units; {job.assembly}
# Submit this file again after failures: finished units are kept, and the range of --array may change.
cd {shlex.quote(job.directory)} || exit
exec {command}
"""


def _kubernetes_manifest(job: _ArrayJob, image: str) -> str:
    command = "\n".join(f"            - {_yaml(_unexpanded(word))}" for word in job.task_command)
    directory = _yaml(job.directory)
    return f"""# Each task encodes its share of the units; {job.assembly}
# The volume must contain the inputs and the output under the same paths as on this machine.
apiVersion: batch/v1
kind: Job
metadata:
  generateName: {_yaml(job.safe_name + "-")}
spec:
  completionMode: Indexed
  completions: {job.tasks}
  parallelism: {job.tasks}
  backoffLimitPerIndex: {_RETRIES}
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: tokshard
          image: {_yaml(image)}
          workingDir: {directory}
          command:
{command}
          env:
            - name: {TASKS_VARIABLE}
              value: {_yaml(str(job.tasks))}
          resources:
            requests:
              cpu: {job.cores}
              memory: {job.cores}Gi
          volumeMounts:
            - name: data
              mountPath: {directory}
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: {_CLAIM}  # replace with the name of your claim
"""


def _job_directory() -> str:
    here = os.getcwd()
    named = os.environ.get("PWD", "")
    return named if os.path.isabs(named) and os.path.realpath(named) == os.path.realpath(here) else here


def _unexpanded(word: str) -> str:
    # Kubernetes replaces $(VARIABLE) in commands.
    return word.replace("$", "$$")


def _yaml(text: str) -> str:
    return '"' + "".join(_YAML_ESCAPES.get(character) or _escaped(character) for character in text) + '"'


_YAML_ESCAPES = {'"': '\\"', "\\": "\\\\"}


def _escaped(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08x}"
