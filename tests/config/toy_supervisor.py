"""A supervisor of shell scripts: `toy_supervisor.py FOLDER work|watch NAME:RANK:SECONDS:SCRIPT…`.

Appends what it reports to FOLDER/reports, and its children's process ids to FOLDER/pids. With `work` it never watches,
as a supervisor that is still preparing.
"""

import os
import sys
import time
from pathlib import Path

from serving.config.child import Backoff, ChildSpec
from serving.config.supervisor import StopRequested, Supervisor


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]

    def report(line: str) -> None:
        with (folder / "reports").open("a") as file:
            file.write(line + "\n")

    with Supervisor(log_folder=folder / "logs", report=report, backoff=Backoff(first=0.1)) as supervisor:
        for text in sys.argv[3:]:
            name, rank, seconds, script = text.split(":", 3)
            script = f"echo $$ >> {folder}/pids; {script}"
            supervisor.start(
                ChildSpec(
                    name=name,
                    command=("sh", "-c", script),
                    environment=os.environ,
                    stop_rank=int(rank),
                    stop_seconds=float(seconds),
                )
            )
        report("started")
        try:
            if mode == "watch":
                supervisor.watch()
            else:
                time.sleep(60)
        except StopRequested:
            report("stop requested")
    report("stopped")


if __name__ == "__main__":
    main()
