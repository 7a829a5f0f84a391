"""Play a script.

Its first words are verbs, each of which is a function here or in another module.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from liftbridge_broker.model.ids import BrokerId
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.sim.network import PPM, Verdict
from liftbridge_testkit.sim.scripts import asking, faulty, logs, looking, operating, publishing
from liftbridge_testkit.sim.scripts.script import ScriptError, run
from liftbridge_testkit.sim.scripts.stage import Rule, Stage, duration_ns, split_options

TAIL_LINES = 40
Verb = Callable[[Stage, Sequence[str]], list[str]]


def _cluster(stage: Stage, words: Sequence[str]) -> list[str]:
    stage.cluster(words)
    return []


def _start(stage: Stage, words: Sequence[str]) -> list[str]:
    """`start A...`: start a process; `until ready` waits until it serves."""
    for name in words:
        stage.machine(name).start()
    return []


def _kill(stage: Stage, words: Sequence[str]) -> list[str]:
    """`kill A...`: SIGKILL; what was written stays."""
    for name in words:
        stage.machine(name).kill()
    return []


def _crash(stage: Stage, words: Sequence[str]) -> list[str]:
    """`crash A... lose=all|some`: cut the power of these machines at once."""
    names, options = split_options(words)
    keep = Random(1) if options.get("lose", "all") == "some" else None
    for name in names:
        stage.machine(name).crash(keep)
    return []


def _stop(stage: Stage, words: Sequence[str]) -> list[str]:
    """`stop A...`: SIGTERM, and wait for the end."""
    for name in words:
        stage.machine(name).stop()
    for name in words:
        machine = stage.machine(name)
        stage.wait_until(f"{name} stopped", lambda machine=machine: not machine.is_running)  # type: ignore[misc]  # bound per turn
    return []


def _pause(stage: Stage, words: Sequence[str]) -> list[str]:
    for name in words:
        stage.machine(name).pause()
    return []


def _resume(stage: Stage, words: Sequence[str]) -> list[str]:
    for name in words:
        stage.machine(name).resume()
    return []


def _wipe(stage: Stage, words: Sequence[str]) -> list[str]:
    """`wipe A`: an empty disk; the process is killed."""
    stage.machine(words[0]).wipe()
    return []


def _cut(stage: Stage, words: Sequence[str]) -> list[str]:
    """`cut A-B`, `cut A>B`, `cut A`: lose everything on these ways."""
    for word in words:
        for way in stage.ways(word):
            stage.world.network.cut(*way)
    return []


def _mend(stage: Stage, words: Sequence[str]) -> list[str]:
    """`mend A-B`: take back a cut in the same words."""
    for word in words:
        for way in stage.ways(word):
            stage.world.network.mend(*way)
    return []


def _unlink(stage: Stage, words: Sequence[str]) -> list[str]:
    """`unlink A...`: the link to NATS falls; without names, of all of them."""
    for name in words or stage.world.machines:
        stage.world.network.unlink(name)
    return []


def _relink(stage: Stage, words: Sequence[str]) -> list[str]:
    for name in words or stage.world.machines:
        stage.world.network.relink(name)
    return []


def _rule(verdict: Verdict) -> Verb:
    def add(stage: Stage, words: Sequence[str]) -> list[str]:
        way, *kinds = words
        source, _, target = way.partition(">")
        for kind in kinds or ["*"]:
            stage.rules.append(Rule(source, target or "*", kind, verdict))
        return []

    return add


def _run(stage: Stage, words: Sequence[str]) -> list[str]:
    stage.run_for(duration_ns(words[0]))
    return []


def _lead(stage: Stage, words: Sequence[str]) -> list[str]:
    """`lead A`: hand the leadership of the metadata group to a broker."""
    name = words[0]

    def is_led() -> bool:
        present = looking.metadata(stage, ())
        if present not in {"none", name}:
            leader = stage.broker(present)
            stage.machine(present).turn(
                stage.machine(present).incarnation, leader.consensus.transfer, BrokerId(name)
            )
            stage.run_for(duration_ns("100ms"))
        return looking.metadata(stage, ()) == name

    stage.wait_until(f"metadata led by {name}", is_led)
    return []


def _clock(stage: Stage, words: Sequence[str]) -> list[str]:
    """`clock A +3600s`: set the wall clock."""
    name, change = words
    sign = -1 if change.startswith("-") else 1
    stage.machine(name).clock.wall_skew_ns += sign * duration_ns(change.lstrip("+-"))
    return []


def _stall(stage: Stage, words: Sequence[str]) -> list[str]:
    """`stall A 20s`: the process does nothing for a while."""
    stage.machine(words[0]).stall(duration_ns(words[1]))
    return []


def _fail(stage: Stage, words: Sequence[str]) -> list[str]:
    """`fail A append|sync|read [pattern] [count=1]`: calls of a disk fail."""
    (name, operation, *patterns), options = split_options(words)
    count = int(options.get("count", "1"))
    fault = Fault(operation, patterns[0] if patterns else "*", count=count)
    files = stage.machine(name).files
    if operation == "read":
        files.cold_ppm = PPM  # reads from memory cannot fail
    files.fail(fault)
    return []


def _full(stage: Stage, words: Sequence[str]) -> list[str]:
    """`full A`: nothing more fits on a disk until `mend-disk A`."""
    files = stage.machine(words[0]).files
    files.capacity_bytes = files.capacity_bytes - files.free_bytes()
    return []


def _mend_disk(stage: Stage, words: Sequence[str]) -> list[str]:
    stage.machine(words[0]).files.mend()
    return []


def _settle(stage: Stage, words: Sequence[str]) -> list[str]:
    """`settle`: mend and start everything; all must recover, and all histories be true."""
    del words
    stage.rules.clear()
    stage.life.recover()
    stage.life.check()
    return []


VERBS: dict[str, Verb] = {
    "cluster": _cluster,
    "start": _start,
    "kill": _kill,
    "crash": _crash,
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
    "wipe": _wipe,
    "cut": _cut,
    "mend": _mend,
    "unlink": _unlink,
    "relink": _relink,
    "hold": _rule(Verdict.HOLD),
    "drop": _rule(Verdict.DROP),
    "run": _run,
    "lead": _lead,
    "clock": _clock,
    "stall": _stall,
    "fail": _fail,
    "full": _full,
    "mend-disk": _mend_disk,
    "settle": _settle,
    "create": publishing.create,
    "publish": publishing.publish,
    "outcome": publishing.outcome_of,
    "delete": publishing.delete,
    "reassign": publishing.reassign,
    "cancel": publishing.cancel,
    "prefer": publishing.prefer,
    "show": looking.show,
    "expect": looking.expect,
    "until": looking.until,
    **operating.VERBS,
    **asking.VERBS,
    **logs.VERBS,
    **faulty.VERBS,
}
looking.QUESTIONS.update(operating.QUESTIONS)
looking.QUESTIONS.update(logs.QUESTIONS)
looking.QUESTIONS.update(faulty.QUESTIONS)


def act(stage: Stage, command: str) -> list[str]:
    """Do one step. Return its output."""
    verb, *words = command.split()
    return VERBS[verb](stage, words)


def play(text: str, *, rewrite: bool = False) -> str:
    """Play a script from its beginning. Return the text with the actual outputs.

    Raises:
        ScriptError: A step failed; the error has the last lines of the trace.
    """
    stage = Stage()
    try:
        return run(text, partial(act, stage), rewrite=rewrite)
    except ScriptError as error:
        tail = "\n".join(stage.world.trace.tail(TAIL_LINES))
        error.add_note(tail)
        raise
