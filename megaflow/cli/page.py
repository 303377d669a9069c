"""`megaflow control web`: the page of a job that runs without one."""

import click

from megaflow import web
from megaflow.cli.help import Command
from megaflow.cli.json_records import to_json
from megaflow.cli.options import Where, answer, say, steering, tell_silence
from megaflow.cli.run_options import WATCHING
from megaflow.control.client import commands
from megaflow.errors import JobNotFound, MegaflowError
from megaflow.job.contact import conversation
from megaflow.job.job_file import Job, find
from megaflow.job.launcher.run.live_page import LivePage
from megaflow.job.launcher.run.published_job import naming_options

LOOK_SECONDS = 0.5  # between two looks whether the job is there


@click.command("web", cls=Command)
@WATCHING
@steering
def show_page(where: Where, as_json: bool, address: str | None, web_control: bool, metrics: str | None) -> None:
    """Show a running job on a web page.

    \b
      megaflow control web
      megaflow control web --job orders --web 8080 --web-control
      megaflow control web --web 0.0.0.0:8080 --metrics 9100

    The command prints the address of the page, and serves it until the job ends or Ctrl-C ends the command. The job
    goes on. By default the page has a free port of this machine. See docs/watching.md.
    """
    job, connect, timeout = where
    with LivePage("0" if address is None else address, metrics, web_control) as page:
        found = None if connect is not None else find(job)
        if found is not None:
            where, target, name = (found.name, None, timeout), naming_options(found), found.name
        else:
            with conversation(*where, tell_silence) as talk:
                target, name = f"--connect {connect}", commands.ask_status(talk, tables=False, partial=True).job
        waits = "" if found is None else restart_of(found)
        page.serve(where, target, {"job": name}, lambda: waits, always=found is None)
        if as_json:
            answer(to_json({"web_url": page.url, "metrics_url": page.metrics_url}))
        for text in page.addresses():
            say(text)
        try:
            while not (why := page.await_end(LOOK_SECONDS)):
                if (state := "" if found is None else state_of(found)) is None:
                    why = web.ENDED
                    break
                waits = state
        except KeyboardInterrupt:
            page.close("The page has been closed. The job goes on.", has_ended=False)
            raise
    if why != web.ENDED:
        raise MegaflowError(why)
    say(f"job {name!r} has ended")


def state_of(job: Job) -> str | None:
    """Return why a job is not ready, "" if it is, None if it has ended."""
    try:
        now = find(job.name)
    except JobNotFound:
        return None
    return restart_of(now) if (now.pid, now.started) == (job.pid, job.started) else None


def restart_of(job: Job) -> str:
    """Return which restart is under way, without the address of the lost process, as `/readyz` shows it to anyone."""
    return job.recovering.partition(":")[0]


COMMANDS = (show_page,)
