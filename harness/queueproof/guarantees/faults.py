"""The guarantee on what survives a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from queueproof.guarantees.guarantee import Guarantee, LifePrograms, Variation
from queueproof.schedule.conditions import PLAIN, Conditions
from queueproof.schedule.moments import past
from queueproof.schedule.programs import (
    COMPLETE_ALL,
    FAULTS,
    PROMOTE,
    RECOVER,
    RESTART,
    Do,
    JobSpec,
    Program,
    Stage,
    advance,
    claim,
    complete,
    crash,
    fail,
    heartbeat,
    in_turn,
    script,
)
from queueproof.space.pieces import NEW, ONE, TWO, Pieces

if TYPE_CHECKING:  # the catalogue is light without
    from queueproof.run.record import Run


def _broken_off(pieces: Pieces, _: LifePrograms) -> list[Program]:
    """Programs in which a connection is cut or a backend ends, at any step of any operation."""
    return pieces.through_only(
        _beside(program, Do(kind, 1))
        for kind, fault in FAULTS.items()
        if not fault.of_server
        for program in pieces.joined((*_operations(pieces), *_meetings(pieces), *_ending(pieces)))
    )


def _killed(pieces: Pieces, _: LifePrograms) -> list[Program]:
    """Programs in which the server is killed and starts again, at any step of any operation."""
    programs = [_beside(program, RESTART) for program in pieces.joined(_operations(pieces))]
    if pieces.lease is not None and "heartbeat" in pieces.offers:
        # What a heartbeat has promised shows only later, and so does what it leaves behind.
        fresh = in_turn(script("w1", claim()), pieces.within())
        beat: Stage = (script("w1", heartbeat()), script("nemesis", RESTART))
        later = in_turn(pieces.within(), *pieces.reaper(), script("w2", claim()))
        programs.append(Program(ONE, (*fresh, beat, *later)))
        beaten = in_turn(script("w1", claim(), heartbeat()))
        programs += [
            _beside(Program(ONE, (*beaten, *in_turn(script("w1", ender)))), RESTART)
            for ender in pieces.enders()
            if ender.kind == "complete"
        ]
    return pieces.through_only(programs)


def _operations(pieces: Pieces) -> Iterator[Program]:
    """Every operation by w1 in the last stage, with whatever it needs."""
    yield Program((), in_turn(script("w1", Do("enqueue"))), reserve=ONE)
    yield Program(ONE, in_turn(script("w1", claim())))
    for ender in pieces.enders():
        yield Program(ONE, in_turn(script("w1", claim(), ender)))
    if "complete_many" in pieces.offers:
        limit = 2 if pieces.takes_limit else 1
        yield Program(TWO, in_turn(script("w1", claim(limit), COMPLETE_ALL)))
    taken = in_turn(script("w2", claim()))
    if pieces.lease is not None and "recover" in pieces.offers:
        over = in_turn(script("clock", advance(past(pieces.lease))))
        yield Program(ONE, (*taken, *over, *in_turn(script("w1", RECOVER))))
    if "promote" in pieces.offers:
        # Something to promote, and somebody to be missed later where it recovers as well.
        gone = in_turn(script("w2", claim(), crash())) if pieces.lease is not None else ()
        yield Program(ONE, (*gone, *in_turn(NEW, script("w1", PROMOTE))), reserve=ONE)
    if pieces.lease is not None:
        yield Program(ONE, (*taken, *pieces.lapse(), *in_turn(script("w1", claim()))))
    if "fail" in pieces.offers and (pieces.bound is None or pieces.bound > 1):
        failed = in_turn(script("w2", claim(), fail()))
        yield Program(ONE, (*failed, *pieces.wait_out(), *in_turn(script("w1", claim()))))
    if "cleanup" in pieces.offers:
        done = in_turn(script("w2", claim(), complete()))
        yield Program(TWO, (*done, *in_turn(script("w1", Do("cleanup")))))


def _meetings(pieces: Pieces) -> Iterator[Program]:
    """w1 beside somebody for whom it may have to wait, or who may have to wait for it."""
    yield Program(TWO, ((script("w1", claim()), script("w2", claim())),))
    taken = in_turn(script("w1", claim()))
    if pieces.lease is None:
        return
    over = in_turn(script("clock", advance(past(pieces.lease))))
    rival = pieces.reaper() or (script("w2", claim()),)
    for ender in pieces.enders():
        yield Program(ONE, (*taken, *over, (script("w1", ender), *rival)))


def _ending(pieces: Pieces) -> Iterator[Program]:
    """w1's job ends, as another one did before, which shows what becomes of such jobs."""
    if "jobs" not in pieces.offers:
        return
    if "fail" in pieces.offers and 1 in pieces.bounds():
        before, last = script("w2", claim(), fail()), script("w1", claim(), fail())
        yield Program((JobSpec(bound=1),) * 2, in_turn(before, last))
    if "complete" in pieces.offers:
        before, last = script("w2", claim(), complete()), script("w1", claim(), complete())
        yield Program(TWO, in_turn(before, last))
    if "complete_many" in pieces.offers and pieces.takes_limit:
        before, last = (script(who, claim(2), COMPLETE_ALL) for who in ("w2", "w1"))
        yield Program((JobSpec(),) * 4, in_turn(before, last))


def _beside(program: Program, fault: Do) -> Program:
    """The program with a fault that may come at any moment of its last stage."""
    *before, last = program.stages
    return program._replace(stages=(*before, (*last, script("nemesis", fault))))


def _hits(run: Run) -> dict[str, int]:
    hit = Counter(fault for fault, _, _ in run.faults)
    hit["restart"] = len(run.history.of_kind("restart"))  # each may hit several workers
    return {fault.several: hit[kind] for kind, fault in FAULTS.items()}


GUARANTEES = (
    Guarantee(
        id="crash-safe",
        sentence=(
            "Nothing acknowledged is lost or doubled when worker, connection or server dies at any "
            "step, the acknowledgement of COMMIT included."
        ),
        why="an outage of a second loses jobs, or runs finished ones again",
        source="https://github.com/rails/solid_queue/issues/748",
        wild=(
            "synchronous_commit = off answers before the commit is on disk, and a crash of the "
            "server empties an UNLOGGED table. A recovery in two transactions dies between them, "
            "and nothing looks at the job again."
        ),
        safe=(
            "A logged table, synchronous_commit left on, one transaction for each change of state. "
            "Where the answer to a COMMIT is lost, lease and token decide: asking again is refused "
            "or changes nothing."
        ),
        evidence=_hits,
        variations=(Variation(PLAIN, _broken_off), Variation(Conditions(killed=True), _killed)),
        faults=True,
    ),
)
"""In the order of the scenarios."""
