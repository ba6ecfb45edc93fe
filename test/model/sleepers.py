# Copyright (c) 2026, the Narad authors
"""Statements that wait, while others go on: consume with wait, narad.wait, and
producers who wait for another's transaction.

Between two statements nobody sleeps beside what he waits for (I8): the driver
goes on only when all who have to return have done so.  They are given a
minute; that is no promise, but the difference between late and lost.
"""

import select
import time

import psycopg2

from books import CLOCK, PATIENCE, Mismatch, expect

NEVER = 3600.0


class Task:
    """What a session is waiting in."""

    def __init__(self, driver, session):
        self.driver = driver
        self.session = session
        self.ends = ()          # errors and other ends that were provoked

    def has_to_return(self):
        raise NotImplementedError

    def check(self, rows):
        raise NotImplementedError


class Sleep(Task):
    """consume(..., wait => ...)"""

    def __init__(self, driver, session, group, part, wait):
        Task.__init__(self, driver, session)
        self.group = group
        self.part = part
        self.wait = wait
        self.is_sole = True

    def has_to_return(self):
        return self.driver.left(self.session, self.group, self.part,
                                time.monotonic(), time.time())

    def check(self, rows):
        driver, session = self.driver, self.session
        if isinstance(rows, str):
            expect(rows in self.ends, "consume with a wait ends with %s", rows)
            return driver.fail(session)
        session.topics.add(self.group.topic)
        if not rows:
            expect("empty" in self.ends or
                   CLOCK.done - CLOCK.sent >= self.wait,
                   "consume waits for %.3f s, not %.3f",
                   CLOCK.done - CLOCK.sent, self.wait)
        own = driver.auto(session)
        driver.take(session, self.group, rows)
        expect(not (self.group.paused and rows), "a paused group is served")
        return driver.commit(session) if own else None


class Call(Sleep):
    """CALL narad.wait(...): takes nothing, and may be told too much."""

    def check(self, rows):
        if isinstance(rows, str):
            return expect(rows in self.ends, "narad.wait ends with %s", rows)
        return expect(rows[0][0] or "empty" in self.ends or
                      CLOCK.done - CLOCK.sent >= self.wait,
                      "narad.wait waits for %.3f s, not %.3f",
                      CLOCK.done - CLOCK.sent, self.wait)


class Blocked(Task):
    """A producer that waits for another's transaction.  For an id, to its end,
    if that released the savepoint in which it produced, though it then rolls
    an outer one back; for a number, until it rolls that back."""

    def __init__(self, driver, session, topic, check, is_free):
        Task.__init__(self, driver, session)
        self.topic = topic
        self.is_free = is_free
        self.check_answer = check

    def has_to_return(self):
        return self.is_free()

    def check(self, rows):
        if rows in self.ends:
            return
        expect(self.is_free(), "answered before the other's transaction ended")
        self.check_answer(rows)


class Sleepers:

    def busy(self, kind=Task):
        return [s for s in self.sessions if isinstance(s.task, kind)]

    def start(self, session, task, text):
        self.history.append((self.sessions.index(session), text + " ..."))
        session.task = task
        session.start(text)

    # -------------------------------------------------------- falling asleep

    def doze(self, session):
        """Mostly where there is nothing to have."""
        if len(self.busy()) >= len(self.sessions) // 2:
            return self.disturb(session)
        for _ in range(6):
            group = self.pick_group()
            if not self.left(session, group, None, time.monotonic(),
                             time.time()):
                break
        wait = self.rng.choice((0.02, NEVER, NEVER))
        if not session.is_open and self.rng.random() < 0.2:
            return self.start(session, Call(self, session, group, None, wait),
                              "CALL narad.wait('%s', '%d ms', '%s')" %
                              (group.topic.name, wait * 1000, group.name))
        part = self.rng.choice((None, None,
                                self.rng.randrange(group.topic.npartitions)))
        acks, more = self.some_acks(session, group)
        if part is not None:
            more += ", partition => %d" % part
        text = self.consume_text(group, self.rng.choice((1, 1, 10)),
                                 more + ", wait => '%d ms'" % (wait * 1000))
        if session.is_open and session.is_rr:
            rows = self.run(session, text)
            return expect(rows == "25001", "a wait with a snapshot: %s", rows)
        self.start(session, Sleep(self, session, group, part, wait), text)
        if acks:
            self.let_it_ack(session, group, acks)
        return None

    def let_it_ack(self, session, group, acks):
        """They count, at the latest, when it sleeps."""
        until = time.monotonic() + PATIENCE
        while not session.is_done(0.001) and not self.control.sql(
                "SELECT 1 FROM pg_stat_get_activity(%d)"
                " WHERE wait_event_type = 'Extension'" % session.pid):
            expect(time.monotonic() < until, "a waiter does not sleep")
        own = self.auto(session)
        for lease in acks:
            self.pin(session, group, lease, "ack")
        if own:
            self.commit(session)

    def is_waited_for(self, topic):
        return any(s.task.topic is topic for s in self.busy(Blocked))

    def block(self, session, text, topic, check, is_free):
        task = Blocked(self, session, topic, check, is_free)
        session.topics.add(topic)
        self.start(session, task, text)

    def stirs(self, topic, group=None):
        """May somebody have been served since his answer was looked for?  By
        what came due then; so it is not known what he was served before."""
        return any(s.task.group.topic is topic and
                   group in (None, s.task.group) and s.task.group.is_timed()
                   for s in self.busy(Sleep))

    # ----------------------------------------------------------- waking up

    def wake(self):
        """Takes the answers of all who have to return, and of who does."""
        until = time.monotonic() + PATIENCE
        while True:
            # Whom a producer woke may answer before the producer does.
            for session in self.busy(Blocked):
                if session.task.has_to_return():
                    self.ended(session)
            for session in self.busy():
                if session.is_done():
                    self.finish(session)
            late = [s for s in self.busy() if s.task.has_to_return()]
            if not late:
                return
            if time.monotonic() > until:
                raise Mismatch("I8: %s sleeps on, and has to return: %s" % (
                    self.sessions.index(late[0]),
                    late[0].task.has_to_return()))
            select.select([s.conn for s in self.busy()], [], [], 0.05)

    def finish(self, session):
        task, session.task = session.task, None
        rows = session.result()
        self.history.append((self.sessions.index(session), "... %s" % (rows,)))
        task.check(rows)
        if not session.is_open:
            session.forget_transaction()
        return rows

    def ended(self, session):
        """The answer to what was provoked, or has to come."""
        expect(session.is_done(PATIENCE), "I8: %d sleeps on",
               self.sessions.index(session))
        return self.finish(session)

    def cancel(self, session):
        session.task.ends = ("57014",)
        self.history.append((self.sessions.index(session), "cancelled"))
        group = getattr(session.task, "group", None)
        # One that comes before the statement has begun is lost.
        for _ in range(20 * PATIENCE):
            self.control.sql("SELECT pg_cancel_backend(%d)" % session.pid)
            if session.is_done(0.05):
                break
        if self.ended(session) == "57014" and group is not None:
            self.doubt(group)

    def disturb(self, session):
        """A waiter is cancelled, or dies, perhaps when it was just served."""
        sleepers = self.busy(Sleep)
        if not sleepers:
            return
        victim = self.rng.choice(sleepers)
        group = victim.task.group
        dice = self.rng.random()
        if dice < 0.4 and not session.is_open:
            part = victim.task.part or 0
            self.produce_plainly(session, group.topic, part)
            self.cancel(victim)
        elif dice < 0.7 or group.is_timed() or not victim.is_open:
            self.cancel(victim)
        else:
            self.kill(victim)

    def produce_plainly(self, session, topic, part):
        rows = self.run(session, "SELECT * FROM narad.produce('%s', %s,"
                        " partition => %d)" % (topic.name, topic.value(),
                                               part))
        expect(not isinstance(rows, str), "produce fails: %s", rows)
        self.auto(session)
        self.appended(session, topic, rows[0], None)
        self.commit(session)

    def end_waits(self, end, gone):
        """Waits that TRUNCATE, drop_group and the like put an end to."""
        for session in self.busy(Sleep):
            if gone(session.task):
                session.task.ends = (end,)
                self.ended(session)

    def kill(self, session):
        """The backend dies, its transaction with it.

        What a sleeper was handed just then has been delivered to nobody.
        """
        group = getattr(session.task, "group", None)
        self.history.append((self.sessions.index(session), "killed"))
        self.must(self.control, "SELECT pg_terminate_backend(%d, 60000)" %
                  session.pid)
        self.lose(session)
        if group is not None:
            self.doubt(group)

    def lose(self, session):
        try:
            session.conn.close()
        except psycopg2.Error:
            pass
        self.roll_back(session, 0)
        session.connect()
