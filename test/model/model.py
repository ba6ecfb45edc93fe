#!/usr/bin/python3
# Copyright (c) 2026, the Narad authors
"""A randomised checker: many sessions against a model of the promises.

One driver holds many sessions, whose transactions overlap, and has one
statement after the other done by a session picked at random; some of these
wait, and go on while others come.  So the model can say of each exactly what
its answer may be:

  I1  a consume that takes less than it might leaves nothing available behind
  I2  what is handed out was available: nobody's lease, nobody's pin
  I3  ... and committed
  I4  an ack is accepted if, and only if, its receipt's lease is live
  I5  acks count from their transaction's commit on, and not after its rollback
  I6  the frontier never falls, and covers what is settled or dead only
  I7  fetch returns what is committed below the last stable offset, in order
  I8  who waits sleeps only while there is nothing for him
  I12 offsets rise, also over TRUNCATE, and old receipts stay void

  order   of a key one message is in flight, the earliest first, whatever
          becomes of it; nothing else is held back
  delays  nothing comes before it is due
  limits  after its last delivery a message is moved to the dead letters, once
  once    an id, or a producer's number, is appended once
  caps    with so many unsettled below the last settled one, nothing beyond it
          comes, and all below it does; no batch is larger than it may be
  drops   with cleanup 'settled' nothing unsettled goes; else who had not
          settled it knows how much he lost, and goes on behind it

A seek acts at once, rolled back or not: leases and pins of the partition are
void, those of open transactions included.

The server is stopped, and killed, in between, and its worker is.  Prints the
seed.  Each operation draws from its own number and the seed, so the same seed
does the same again as far as time lets it: what is due, and when a dead letter
is moved, is up to the clock.

    books        what the model knows, and what transactions come to
    statements   statements of one session
    sleepers     statements that wait
    deadletters  what the worker moves
    retention    what is dropped
    model        the run: topics, operations, looks, restarts
"""

import argparse
import random
import subprocess
import sys
import time

import psycopg2

from books import CLOCK, DAY, PATIENCE, Books, Group, Mismatch, Session, \
    Topic, UNLIMITED, expect
from deadletters import DeadLetters
from retention import Retention
from sleepers import Sleep, Sleepers
from statements import Statements

FLUSH = 0.2                     # narad.frontier_flush_interval, seconds


class Driver(Books, Statements, Sleepers, DeadLetters, Retention):
    def __init__(self, args):
        self.args = args
        self.rng = random.Random(args.seed)
        self.ncommits = 0
        self.nclaims = 0
        self.serial = 0         # of the last dead letter seen
        self.durable = 0        # ... before the last commit that was flushed
        self.counts = {}
        self.history = []
        self.topics = []
        self.prepared = []      # (gid, level, topics)
        self.nprepared = 0
        self.ndropped = self.nlost = 0
        self.orphans = {}
        self.dead_stable = 0
        self.sessions = [Session(args.dsn) for _ in range(args.sessions)]
        self.control = Session(args.dsn)
        self.setup()

    # ------------------------------------------------------------ set-up

    def kinds(self):
        """Topics of each kind, and one that is several at once."""
        rng = self.rng
        self.dead = Topic("m_dead")
        partitions, cap = rng.choice((1, 2, 3)), rng.choice((6, 1024))
        ordered, late = rng.random() < 0.7, rng.random() < 0.5
        return [
            self.dead,
            Topic("m_one"),
            Topic("m_some", 4),
            Topic("m_capped", 2, 6),
            Topic("m_ahead", 2, ahead=3),
            Topic("m_settled", drops="settled"),
            Topic("m_oldest", drops="oldest"),
            Topic("m_keyed", 2, ordered=True),
            Topic("m_late", 2, late=True),
            Topic("m_limited", 1, limit=3),
            Topic("m_once", 2, once=True),
            Topic("m_mixed", partitions, cap, ordered=ordered, late=late,
                  limit=rng.choice((0, 2, 4)),
                  retry=rng.choice((0.0, 0.02)), once=rng.random() < 0.5,
                  ahead=rng.choice((2, 8, UNLIMITED)))]

    def setup(self):
        self.must(self.control, "CREATE EXTENSION IF NOT EXISTS narad")
        self.args.two_phase = int(self.must(
            self.control, "SHOW max_prepared_transactions")[0][0])
        self.make_value()
        self.topics = self.kinds()
        for topic in reversed(self.topics):
            self.must(self.control, "DROP TABLE IF EXISTS " + topic.name)
        for topic in self.topics:
            more = ", ordering => 'key'" if topic.ordered else ""
            if topic.limit:
                more += (", max_deliveries => %d,"
                         " dead_letter_topic => 'm_dead'" % topic.limit)
            if topic.drops:
                more += ", segment_size => '256kB'"
            if topic.drops == "settled":
                more += ", cleanup => 'settled'"
            self.must(self.control,
                      "SELECT narad.create_topic('%s', partitions => %d,"
                      " visibility_timeout => '1 hour', max_in_flight => %d,"
                      " max_acked_ahead => %d, retry_delay => '%d ms',"
                      " retry_backoff => 2, dedup_window => '1 day'%s)"
                      % (topic.name, topic.npartitions, topic.max_in_flight,
                         topic.ahead, topic.retry * 1000, more))
            for group in ("default", "other"):
                self.make_group(topic, group)
            if topic.drops == "settled":
                self.make_groups_count(topic)

    def make_group(self, topic, name):
        self.must(self.control, "SELECT narad.create_group('%s', '%s')"
                  % (topic.name, name))
        group = Group(topic, name)
        for message in topic.messages.values():
            group.add(message)
        topic.groups[name] = group

    # ------------------------------------------------------------- looking

    def fetch(self, session):
        topic = self.rng.choice(self.topics)
        part = self.rng.randrange(topic.npartitions)
        if topic.high[part] < 0:
            return
        bounds = self.must(self.control, "SELECT earliest, last_stable FROM"
                           " narad.offsets('%s') WHERE partition = %d"
                           % (topic.name, part))[0]
        still_open = [off for p, off in topic.open if p == part]
        expect(not still_open or bounds[1] <= min(still_open),
               "I7: %d is stable, %s is open", bounds[1], still_open)
        if topic.is_dead:
            self.learn()
        if bounds[1] < bounds[0]:
            return
        start = self.rng.randrange(bounds[0], bounds[1] + 1)
        rows = self.run(session, "SELECT msg_offset FROM narad.fetch('%s', %d,"
                        " %d, 20)" % (topic.name, part, start))
        if rows == "NR416" and topic.drops == "settled":
            return              # the worker was faster
        expect(not isinstance(rows, str), "fetch fails: %s", rows)
        got = [r[0] for r in rows if r[0] < bounds[1]]
        wanted = sorted(off for p, off in topic.messages
                        if p == part and start <= off < bounds[1])
        if session.is_open:
            session.topics.add(topic)
        expect(got == wanted[:20] and
               (topic.is_dead or len(got) == len(rows)), "I7: fetch of %s/%d"
               " from %d: %s, not %s", topic.name, part, start, rows,
               wanted[:20])

    def check_views(self):
        """I6, and that the engine's books agree with ours."""
        for topic in self.topics:
            for group in topic.groups.values():
                self.check_frontier(topic, group)
                self.check_leases(topic, group)
            self.look_around(topic)
            before = len(topic.messages)
            rows = self.must(self.control, "SELECT count(*) FROM %s"
                             % topic.name)
            self.look_around(topic)
            after = len(topic.messages)
            expect(min(before, after) <= rows[0][0] <= max(before, after),
                   "%s has %d rows, not %d",
                   topic.name, rows[0][0], len(topic.messages))
            rows = self.must(self.control, "SELECT * FROM narad.verify('%s')"
                             % topic.name)
            expect(not rows, "verify: %s", rows)

    def look_around(self, topic):
        self.learn()
        self.see_dropped(topic)

    def check_frontier(self, topic, group):
        rows = self.must(self.control, "SELECT partition, frontier FROM"
                         " narad.groups WHERE topic = '%s'::regclass AND"
                         " consumer_group = '%s'" % (topic.name, group.name))
        if topic.limit:
            self.learn()
        for part, frontier in rows:
            if frontier is None:
                continue
            low = group.frontier.get(part, -1)
            expect(frontier >= low, "I6: the frontier of %s %s %d falls from "
                   "%d to %d", topic.name, group.name, part, low, frontier)
            group.frontier[part] = frontier
            # Below the place it was moved to, it skips what is open, too.
            bad = [w for w in list(topic.messages) + list(topic.open)
                   if w[0] == part and w[1] <= frontier and
                   w not in group.settled and w[1] >= group.start[part]]
            expect(not bad, "I6: the frontier of %s %s is %d, and %s is not "
                   "settled", topic.name, group.name, frontier, bad[:5])

    def check_leases(self, topic, group):
        until = time.monotonic() + PATIENCE
        while True:
            theirs, ours = self.look_at_leases(topic, group)
            if theirs == ours or time.monotonic() > until or \
                    not any(s.task.group is group for s in self.busy(Sleep)):
                break
            self.wake()         # one of these may just have taken some
        expect(theirs == ours, "leases of %s %s differ by %s", topic.name,
               group.name, sorted(set(theirs) ^ set(ours))[:6])

    def look_at_leases(self, topic, group):
        rows = self.must(self.control, "SELECT partition, msg_offset, pinned"
                         " FROM narad.leases WHERE topic = '%s'::regclass AND"
                         " consumer_group = '%s' AND (pinned OR expires_at >"
                         " clock_timestamp())" % (topic.name, group.name))
        ours = sorted((w.where[0], w.where[1], w.state == "pinned")
                      for w in group.leases.values()
                      if w.state in ("leased", "pinned"))
        # The worker pins what it moves.
        moving = {w for w, lease in group.leases.items() if lease.is_dying()}
        return sorted(r for r in rows if not r[2] or r[:2] not in moving), ours

    # -------------------------------------------- what changes more at once

    def change_group(self, session):
        group = self.pick_group()
        topic = group.topic
        dice = self.rng.random()
        if not group.paused and self.stirs(topic, group):
            return
        self.history.append(("control", "group %s %s %.2f" %
                             (topic.name, group.name, dice)))
        if group.paused or dice < 0.5:
            self.must(self.control, "SELECT narad.%s_group('%s', '%s')" %
                      ("resume" if group.paused else "pause", topic.name,
                       group.name))
            group.paused = not group.paused
        elif dice < 0.6 and group.name != "default" and \
                topic.drops != "settled":
            self.learn()
            self.must(self.control, "SELECT narad.drop_group('%s', '%s')" %
                      (topic.name, group.name))
            self.durable = self.serial
            self.forget(group)
            self.end_waits("42704", lambda task: task.group is group)
            self.make_group(topic, group.name)

    def truncate(self, session):
        topic = self.rng.choice(self.topics)
        if topic.drops == "settled" or \
                any(topic in s.topics for s in self.sessions) or \
                any(topic in p[2] for p in self.prepared) or \
                self.stirs(topic):
            return
        self.learn()
        if topic.is_dead and self.dying():
            return
        self.history.append(("control", "truncate " + topic.name))
        self.must(self.control, "SELECT narad.purge_topic('%s')" % topic.name)
        self.learn()
        self.durable = self.serial
        for name, group in list(topic.groups.items()):
            self.forget(group)
            successor = Group(topic, name)
            successor.paused = group.paused
            topic.groups[name] = successor
            self.end_waits("empty", lambda task: task.group is group)
        self.orphans = {n: c for n, c in self.orphans.items()
                        if n[0] != topic.name}
        topic.empty()
        topic.earliest = [high + 1 for high in topic.high]

    def kill_worker(self, session):
        """What is on its way to the dead letters, or to disk, waits."""
        who = "SELECT pid FROM pg_stat_activity WHERE backend_type" \
            " LIKE 'narad worker%' AND datname = current_database()"
        old = self.must(self.control, who)
        if not old:
            return
        self.history.append(("control", "the worker is killed"))
        self.must(self.control, "SELECT pg_terminate_backend(%d, 60000)" %
                  old[0][0])
        until = time.monotonic() + PATIENCE
        while self.must(self.control, who) in ([], old):
            expect(time.monotonic() < until, "the worker does not come back")
            time.sleep(0.02)
        for topic in self.topics:
            for group in topic.groups.values():
                group.maybe = {w: t and time.monotonic()
                               for w, t in group.maybe.items()}

    def server(self, *args):
        subprocess.run([self.args.pg_ctl, "-D", self.args.data, "-w", "-s"] +
                       list(args), check=True, stdout=subprocess.DEVNULL)

    def restart(self):
        """A stop, clean or not: leases are forgotten, acks are not."""
        mode = self.rng.choice(("immediate", "fast"))
        for session in self.busy():
            if not isinstance(session.task, Sleep) or \
                    session.task.group.is_timed():
                self.cancel(session)
        for session in self.busy():
            self.doubt(session.task.group)      # served in the last moment
        self.history.append(("control", mode))
        now = time.monotonic()
        self.server("stop", "-m", mode)
        self.server("start", "-l", self.args.log)
        for one in self.sessions:
            self.lose(one)
        self.control.connect()
        if mode == "immediate":
            self.undo_moves()
        for topic in self.topics:
            if mode == "immediate":
                # What no commit flushed may never have been.
                for p in range(topic.npartitions):
                    kept = [w[1] for w in topic.messages if w[0] == p]
                    kept += [m.off for prepared in self.prepared
                             for t, m in prepared[1].produced
                             if t is topic and m.part == p]
                    topic.high[p] = max([topic.base[p] - 1] + kept)
            for group in topic.groups.values():
                self.restart_group(group, mode, now)

    def restart_group(self, group, mode, now):
        for lease in list(group.leases.values()):
            if lease.receipt is not None:
                self.give_back(group, lease)
            lease.state = "returned"
            lease.known = False
            lease.passed = False
            lease.claim = 0
            lease.may_die = bool(group.topic.limit)
        group.turn = {}
        if mode == "immediate":
            group.suspects_to = [float("inf")] * group.topic.npartitions
        # None: may come again.
        for where, when in list(group.maybe.items()):
            if when is None:
                continue
            if mode == "immediate" and now - when < 4 * FLUSH + 1:
                group.maybe[where] = None
                group.frontier = {}
            else:
                del group.maybe[where]
        group.used = set()
        group.top = [-1] * group.topic.npartitions
        for part, off in group.settled:
            if group.maybe.get((part, off), 0.0) is not None:
                group.top[part] = max(group.top[part], off)

    # --------------------------------------------------------------- the run

    OPERATIONS = (("produce", 22), ("consume", 26), ("settle_some", 26),
                  ("begin", 7), ("end_transaction", 9), ("savepoint", 3),
                  ("end_savepoint", 3), ("extend", 1), ("expire", 1.5),
                  ("fetch", 2), ("doze", 6), ("disturb", 0.4),
                  ("change_group", 0.3), ("prepare", 0.7), ("seek", 0.3),
                  ("kill", 0.1), ("retain", 1), ("truncate", 0.05),
                  ("kill_worker", 0.002))

    def one(self, n):
        self.rng.seed(self.args.seed * 1000000007 + n)
        name = self.rng.choices([o[0] for o in self.OPERATIONS],
                                [o[1] for o in self.OPERATIONS])[0]
        session = self.rng.choice([s for s in self.sessions if not s.task])
        if session.failed and name not in ("end_transaction", "end_savepoint",
                                           "kill"):
            name = self.rng.choice(("end_transaction", "end_savepoint"))
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, name)(session)
        self.wake()

    def go(self):
        crash_every = max(1, self.args.operations // (self.args.restarts + 1))
        for n in range(1, self.args.operations + 1):
            self.one(n)
            if n % 2500 == 0:
                self.check_views()
                self.trim()
            if n % crash_every == 0 and self.args.pg_ctl:
                self.restart()
        for session in self.busy(Sleep):
            self.cancel(session)
        for session in self.sessions:
            if session.is_open:
                self.end_transaction(session)
        while self.prepared:
            self.end_prepared()
        self.wake()
        self.drain()
        self.check_views()

    def trim(self):
        """Keeps the books short."""
        del self.history[:-self.args.show]
        for topic in self.topics:
            del topic.stale[:-1000]
            for group in topic.groups.values():
                for where, when in list(group.maybe.items()):
                    if when is not None and \
                            time.monotonic() - when > 4 * FLUSH + 2:
                        del group.maybe[where]

    def drain(self):
        """I1: in the end everything can be had, and settled."""
        session = self.sessions[0]
        # The dead letters come last: others go on to become some.
        for topic in reversed(self.topics):
            for group in topic.groups.values():
                if group.paused:
                    self.must(self.control, "SELECT narad.resume_group('%s',"
                              " '%s')" % (topic.name, group.name))
                    group.paused = False
            if topic.is_dead:
                self.await_moves()
            for group in topic.groups.values():
                while self.drain_some(session, group):
                    pass

    def drain_some(self, session, group):
        since = self.ncommits
        rows = self.run(session, self.consume_text(group, 1000, ""))
        expect(not isinstance(rows, str), "consume fails: %s", rows)
        then = (CLOCK.sent, CLOCK.wall_sent, since)
        self.auto(session)
        self.take(session, group, rows)
        self.commit(session)
        live = [w for w in group.leases.values() if w.state == "leased"]
        if live:
            self.must(session, "SELECT narad.ack(ARRAY[%s])" %
                      ",".join("'%s'" % w.receipt for w in live))
            for lease in live:
                self.settle(group, lease, False)
            return True
        self.check_dry(session, group, None, then)
        return self.something_comes(group, *then[:2])

    def something_comes(self, group, now, wall):
        """Is there more to wait for?  What is left has to have a reason: what
        came due after the last look was sent is one."""
        self.learn()
        dues = {}
        for where, lease in group.leases.items():
            dues[where] = lease.due[1] - now if lease.state == "delayed" \
                else 0.05
        for part, fresh in enumerate(group.fresh):
            for off in fresh:
                due = group.topic.messages[(part, off)].due
                dues[(part, off)] = due[1] - wall if due else 0.0
        if any(0 < due < DAY / 100 for due in dues.values()) or \
                any(group.was_just_moved(place) for place in group.line):
            time.sleep(0.02)
            return True
        # What waits for a day, or an hour, holds back the rest of its key.
        left = [w for w, due in dues.items() if due <= 0 and
                not any(dues.get((w[0], off), 0) > 0
                        for off in group.line.get(group.place(w), ()))]
        expect(not left, "I1: %s %s: %s cannot be had: %s", group.topic.name,
               group.name, left[:5], self.neighbours(group, left and left[0]))
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--seed", type=int,
                        default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--operations", type=int, default=20000)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--show", type=int, default=2000)
    parser.add_argument("--pg-ctl")
    parser.add_argument("--data")
    parser.add_argument("--log")
    args = parser.parse_args()
    print("seed %d, %d operations" % (args.seed, args.operations))
    driver = Driver(args)
    try:
        driver.go()
    except (Mismatch, psycopg2.Error) as mismatch:
        for who, text in driver.history[-args.show:]:
            print("  %s: %s" % (who, text))
        print("mismatch after %d operations: %s" %
              (sum(driver.counts.values()), mismatch))
        return 1
    print("agreed: " + ", ".join("%s %d" % c for c in
                                 sorted(driver.counts.items())) +
          "; %d messages dropped, %d lost" % (driver.ndropped, driver.nlost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
