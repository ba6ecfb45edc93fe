#!/usr/bin/python3
# Copyright (c) 2026, the Narad authors
"""A randomised checker: many sessions against a model of the promises.

One driver holds many sessions, whose transactions overlap, and has one
statement after the other done by a session picked at random.  Since statements
do not overlap, the model can say of each exactly what its answer may be:

  I1  a consume that takes less than it might leaves nothing available behind
  I2  what is handed out was available: nobody's lease, nobody's pin
  I3  ... and committed
  I4  an ack is accepted if, and only if, its receipt's lease is live
  I5  acks count from their transaction's commit on, and not after its rollback
  I6  the frontier never falls, and covers what is settled or dead only
  I7  fetch returns what is committed below the last stable offset, in order
  I12 offsets rise, also over TRUNCATE, and old receipts stay void

A seek acts at once, rolled back or not: leases and pins of the partition are
void, those of open transactions included.

The server is stopped, and killed, in between.  Prints the seed; the same seed
and the same number of operations do the same again.
"""

import argparse
import random
import subprocess
import sys
import time

import psycopg2

LONG = "1 hour"
FLUSH = 0.2                     # narad.frontier_flush_interval, seconds


class Mismatch(Exception):
    pass


def expect(condition, text, *args):
    if not condition:
        raise Mismatch(text % args)


class Message:
    __slots__ = ("part", "off", "seq")

    def __init__(self, part, off):
        self.part = part
        self.off = off
        self.seq = None         # number of the commit; None: open


class Lease:
    """What a group knows of a message that is neither fresh nor settled."""
    __slots__ = ("where", "state", "receipt", "deliveries", "known",
                 "taker", "taker_aborted", "actions", "pinner")

    def __init__(self, where):
        self.where = where
        self.state = "leased"   # leased, pinned, returned, delayed
        self.receipt = None
        self.deliveries = 0
        self.known = True       # deliveries is exact
        self.taker = None       # session whose open transaction took it
        self.taker_aborted = False
        self.pinner = None
        self.actions = []       # of the pinner: (level, kind)


class Group:
    def __init__(self, topic, name):
        self.topic = topic
        self.name = name
        self.paused = False
        self.gone = False
        self.fresh = [set() for _ in range(topic.npartitions)]
        self.leases = {}
        self.settled = set()
        self.maybe = {}         # settled without an xid: where -> time
        self.frontier = {}      # as the view told
        self.start = [0] * topic.npartitions

    def available(self, where):
        lease = self.leases.get(where)
        if lease is not None:
            return lease.state == "returned"
        return where[1] in self.fresh[where[0]]

    def in_flight(self, part):
        return sum(1 for lease in self.leases.values()
                   if lease.where[0] == part and lease.state == "leased")


class Topic:
    def __init__(self, name, npartitions, max_in_flight):
        self.name = name
        self.npartitions = npartitions
        self.max_in_flight = max_in_flight
        self.messages = {}      # committed: where -> Message
        self.open = set()       # of open transactions
        self.high = [-1] * npartitions
        self.base = [0] * npartitions   # after TRUNCATE
        self.groups = {}
        self.stale = []         # receipts of former leases


class Level:
    """One nesting level of a transaction."""

    def __init__(self):
        self.produced = []      # (topic, Message)
        self.taken = []         # (group, lease, receipt)
        self.pinned = []        # (group, lease)


class Session:
    def __init__(self, dsn):
        self.dsn = dsn
        self.conn = None
        self.connect()

    def connect(self):
        self.conn = psycopg2.connect(self.dsn)
        self.conn.autocommit = True
        self.cur = self.conn.cursor()
        self.levels = []
        self.failed = False
        self.has_xid = False
        self.has_sought = False
        self.snapshot = None    # number of the commit seen, in RR
        self.is_rr = False
        self.topics = set()     # locked by the open transaction

    def sql(self, text):
        """Rows, or the error's SQLSTATE."""
        try:
            self.cur.execute(text)
            return self.cur.fetchall() if self.cur.description else []
        except psycopg2.Error as error:
            if error.pgcode is None:
                raise
            return error.pgcode

    @property
    def is_open(self):
        return bool(self.levels)


class Driver:
    def __init__(self, args):
        self.args = args
        self.rng = random.Random(args.seed)
        self.ncommits = 0
        self.counts = {}
        self.history = []
        self.topics = []
        self.prepared = []      # (gid, level, topics)
        self.nprepared = 0
        self.sessions = [Session(args.dsn) for _ in range(args.sessions)]
        self.control = Session(args.dsn)
        self.setup()

    # ------------------------------------------------------------ set-up

    def must(self, session, text):
        if session is not self.control:
            self.history.append((self.sessions.index(session), text))
        rows = session.sql(text)
        expect(not isinstance(rows, str), "error %s in: %s", rows, text)
        return rows

    def setup(self):
        self.must(self.control, "CREATE EXTENSION IF NOT EXISTS narad")
        self.args.two_phase = int(self.must(
            self.control, "SHOW max_prepared_transactions")[0][0])
        for name, npartitions, cap in (("m_one", 1, 1024), ("m_some", 4, 1024),
                                       ("m_capped", 2, 6)):
            self.must(self.control, "DROP TABLE IF EXISTS " + name)
            self.must(self.control,
                      "SELECT narad.create_topic('%s', partitions => %d,"
                      " visibility_timeout => '%s', max_in_flight => %d,"
                      " max_acked_ahead => 100000)"
                      % (name, npartitions, LONG, cap))
            topic = Topic(name, npartitions, cap)
            self.topics.append(topic)
            for group in ("default", "other"):
                self.make_group(topic, group)

    def make_group(self, topic, name):
        self.must(self.control, "SELECT narad.create_group('%s', '%s')"
                  % (topic.name, name))
        group = Group(topic, name)
        for part, off in topic.messages:
            group.fresh[part].add(off)
        topic.groups[name] = group
        return group

    # -------------------------------------------- what transactions come to

    def publish(self, topic, message):
        message.seq = self.ncommits
        where = (message.part, message.off)
        topic.open.discard(where)
        topic.messages[where] = message
        for group in topic.groups.values():
            if message.off >= group.start[message.part]:
                group.fresh[message.part].add(message.off)

    def settle(self, group, lease, has_xid):
        if group.leases.get(lease.where) is not lease:
            return
        del group.leases[lease.where]
        group.settled.add(lease.where)
        if not has_xid:
            group.maybe[lease.where] = time.monotonic()
        group.topic.stale.append(lease.receipt)

    def give_back(self, group, lease, state="returned"):
        if group.leases.get(lease.where) is not lease:
            return
        group.topic.stale.append(lease.receipt)
        lease.state = state
        lease.receipt = None
        lease.taker = None
        lease.taker_aborted = False
        lease.pinner = None
        lease.actions = []

    def unpin(self, group, lease, levels):
        """Takes back the actions of levels that are rolled back."""
        if lease.state != "pinned" or group.gone or \
                group.leases.get(lease.where) is not lease:
            return
        lease.actions = [a for a in lease.actions if a[0] not in levels]
        if lease.actions:
            return
        lease.pinner = None
        if lease.taker_aborted:
            self.give_back(group, lease)
        else:
            lease.state = "leased"

    def roll_back(self, session, first):
        """Undoes the levels from this one on."""
        levels = session.levels[first:]
        for level in levels:
            for topic, message in level.produced:
                topic.open.discard((message.part, message.off))
            for group, lease in level.pinned:
                if lease.pinner is session:
                    self.unpin(group, lease, levels)
            for group, lease, receipt in level.taken:
                if group.gone or lease.receipt != receipt or \
                        lease.taker is not session:
                    continue
                if lease.state == "pinned":
                    lease.taker_aborted = True
                    lease.taker = None
                elif lease.state == "leased":
                    self.give_back(group, lease)
        del session.levels[first:]

    def commit(self, session):
        level = Level()
        for one in session.levels:
            level.produced += one.produced
            level.taken += one.taken
            level.pinned += one.pinned
        session.levels = []
        if level.produced:
            self.ncommits += 1
        for topic, message in level.produced:
            self.publish(topic, message)
        for group, lease, receipt in level.taken:
            if lease.receipt == receipt:
                lease.taker = None
        seen = set()
        for group, lease in level.pinned:
            if id(lease) in seen or lease.pinner is not session or group.gone:
                continue
            seen.add(id(lease))
            kind = lease.actions[-1][1]
            if kind == "ack":
                self.settle(group, lease, session.has_xid)
            else:
                self.give_back(group, lease,
                               "delayed" if kind == "delay" else "returned")
        self.end(session)

    def end(self, session):
        session.levels = []
        session.failed = False
        session.has_xid = False
        session.has_sought = False
        session.snapshot = None
        session.is_rr = False
        session.topics = set()

    # ------------------------------------------------ statements, one by one

    def begin(self, session):
        if session.is_open:
            return self.savepoint(session)
        session.is_rr = self.rng.random() < 0.1
        self.must(session, "BEGIN ISOLATION LEVEL REPEATABLE READ"
                  if session.is_rr else "BEGIN")
        session.levels = [Level()]
        if not session.is_rr and self.rng.random() < 0.2:
            self.must(session, "SELECT txid_current()")
            session.has_xid = True

    def end_transaction(self, session):
        if not session.is_open:
            return self.begin(session)
        if session.failed or self.rng.random() < 0.35:
            self.must(session, "ROLLBACK")
            self.roll_back(session, 0)
            self.end(session)
        else:
            self.must(session, "COMMIT")
            self.commit(session)

    def prepare(self, session):
        """Two-phase commit: of what was produced; acks cannot be prepared."""
        if self.prepared and (len(self.prepared) > 3 or
                              self.rng.random() < 0.5):
            return self.end_prepared()
        if not session.is_open or session.failed or \
                self.args.two_phase == 0 or \
                not any(level.produced for level in session.levels):
            return None
        has_pins = any(lease.pinner is session and lease.state == "pinned"
                       for level in session.levels
                       for _, lease in level.pinned)
        self.nprepared += 1
        gid = "m%d" % self.nprepared
        rows = self.run(session, "PREPARE TRANSACTION '%s'" % gid)
        if has_pins or session.has_sought:
            expect(rows == "0A000", "acks or a seek were prepared: %s", rows)
            self.roll_back(session, 0)
            return self.end(session)
        expect(not isinstance(rows, str), "PREPARE fails: %s", rows)
        level = Level()
        for one in session.levels:
            level.produced += one.produced
            for _, lease, receipt in one.taken:
                if lease.receipt == receipt:
                    lease.taker = None
        self.prepared.append((gid, level, session.topics))
        return self.end(session)

    def end_prepared(self):
        gid, level, _ = self.prepared.pop(
            self.rng.randrange(len(self.prepared)))
        if self.rng.random() < 0.5:
            self.history.append(("control", "COMMIT PREPARED " + gid))
            self.must(self.control, "COMMIT PREPARED '%s'" % gid)
            self.ncommits += 1
            for topic, message in level.produced:
                self.publish(topic, message)
        else:
            self.history.append(("control", "ROLLBACK PREPARED " + gid))
            self.must(self.control, "ROLLBACK PREPARED '%s'" % gid)
            for topic, message in level.produced:
                topic.open.discard((message.part, message.off))

    def savepoint(self, session):
        if not session.is_open or session.failed or len(session.levels) > 4:
            return
        self.must(session, "SAVEPOINT s%d" % len(session.levels))
        session.levels.append(Level())

    def end_savepoint(self, session):
        if len(session.levels) < 2:
            return
        depth = self.rng.randrange(1, len(session.levels))
        if session.failed or self.rng.random() < 0.5:
            self.must(session, "ROLLBACK TO s%d" % depth)
            self.roll_back(session, depth)
            session.levels.append(Level())
            session.failed = False
            return
        self.must(session, "RELEASE s%d" % depth)
        into = session.levels[depth - 1]
        for level in session.levels[depth:]:
            into.produced += level.produced
            into.taken += level.taken
            into.pinned += level.pinned
            for _, lease in level.pinned:
                lease.actions = [(into if a[0] is level else a[0], a[1])
                                 for a in lease.actions]
        del session.levels[depth:]

    def run(self, session, text):
        """A statement; an error fails the transaction."""
        who = self.sessions.index(session)
        self.history.append((who, text))
        if session.is_open and session.is_rr and session.snapshot is None:
            session.snapshot = self.ncommits
        rows = session.sql(text)
        self.history.append((who, "-> %s" % (rows,)))
        if isinstance(rows, str) and session.is_open:
            # The innermost level is undone at once, the others when told.
            session.failed = True
            self.roll_back(session, len(session.levels) - 1)
            session.levels.append(Level())
        return rows

    def auto(self, session):
        """A level for a statement that is a transaction of its own."""
        if not session.is_open:
            session.levels = [Level()]
            return True
        return False

    def produce(self, session):
        topic = self.rng.choice(self.topics)
        count = self.rng.choice((1, 1, 1, 2, 5))
        part = self.rng.choice((None, self.rng.randrange(topic.npartitions)))
        # Without both it would be the backend's choice, and not replayable.
        named = ", key => 'k%d'" % self.rng.randrange(20) if count == 1 else \
            ", keys => ARRAY[%s]" % ",".join("'k%d'" % self.rng.randrange(20)
                                             for _ in range(count))
        if part is not None:
            named = ", partition => %d" % part
        if count == 1:
            text = "SELECT * FROM narad.produce('%s', '1'%s)" % (topic.name,
                                                                 named)
        else:
            text = ("SELECT * FROM narad.produce_batch('%s',"
                    " array_fill('1'::jsonb, ARRAY[%d])%s)"
                    % (topic.name, count, named))
        rows = self.run(session, text)
        expect(not isinstance(rows, str), "produce fails: %s", rows)
        expect(len(rows) == count, "%d positions of %d", len(rows), count)
        own = self.auto(session)
        session.has_xid = True
        session.topics.add(topic)
        for p, off in rows:
            expect(part is None or p == part, "partition %s", p)
            expect(off > topic.high[p], "I12: offset %d again in %s/%d",
                   off, topic.name, p)
            topic.high[p] = off
            message = Message(p, off)
            topic.open.add((p, off))
            session.levels[-1].produced.append((topic, message))
        if own:
            self.commit(session)

    def pick_group(self):
        topic = self.rng.choice(self.topics)
        return self.rng.choice(list(topic.groups.values()))

    def visible(self, session, group, where):
        if not session.is_rr or not session.is_open:
            return True
        return group.topic.messages[where].seq <= session.snapshot

    def take(self, session, group, rows):
        """What consume handed out."""
        for receipt, part, off, deliveries in rows:
            where = (part, off)
            topic = group.topic
            expect(where in topic.messages,
                   "I3: %s %s is not committed", topic.name, where)
            lease = group.leases.get(where)
            if lease is None and where in group.maybe and \
                    where in group.settled and group.maybe[where] is None:
                # The server died before the ack was on disk.
                group.settled.discard(where)
                del group.maybe[where]
                lease = Lease(where)
                lease.known = False
                lease.state = "returned"
                group.leases[where] = lease
            expect(group.available(where), "I2: %s %s %s is %s", topic.name,
                   group.name, where, lease.state if lease else "settled")
            expect(self.visible(session, group, where),
                   "%s is newer than the snapshot", where)
            group.fresh[part].discard(off)
            if lease is None:
                lease = Lease(where)
                group.leases[where] = lease
            if lease.known:
                expect(deliveries == lease.deliveries + 1,
                       "%d deliveries of %s, not %d", deliveries, where,
                       lease.deliveries + 1)
            lease.deliveries = deliveries
            lease.known = True
            lease.state = "leased"
            lease.receipt = receipt
            lease.taker = session
            lease.taker_aborted = False
            session.levels[-1].taken.append((group, lease, receipt))

    def check_dry(self, session, group, part):
        """I1: consume wanted more than it took, so nothing is left."""
        for p in range(group.topic.npartitions):
            if part is not None and p != part:
                continue
            if group.in_flight(p) >= group.topic.max_in_flight:
                continue
            left = [(p, off) for off in group.fresh[p]]
            left += [w for w, lease in group.leases.items()
                     if w[0] == p and lease.state == "returned"]
            left = [w for w in left if self.visible(session, group, w)]
            expect(not left, "I1: %s %s: %s was not delivered",
                   group.topic.name, group.name, left[:5])
            if not session.is_rr:
                for where in [w for w, t in group.maybe.items()
                              if t is None and w[0] == p]:
                    del group.maybe[where]

    def consume(self, session):
        group = self.pick_group()
        part = self.rng.choice((None, None,
                                self.rng.randrange(group.topic.npartitions)))
        count = self.rng.choice((1, 1, 3, 10))
        acks = []
        if self.rng.random() < 0.2:
            acks = [w for w in group.leases.values()
                    if self.may_act(session, w)][:3]
        rows = self.run(session, "SELECT receipt, partition, msg_offset,"
                        " deliveries FROM narad.consume('%s', %d,"
                        " consumer_group => '%s'%s%s)"
                        % (group.topic.name, count, group.name,
                           "" if part is None else ", partition => %d" % part,
                           "" if not acks else ", ack => ARRAY[%s]" %
                           ",".join("'%s'" % w.receipt for w in acks)))
        expect(not isinstance(rows, str), "consume fails: %s", rows)
        own = self.auto(session)
        session.topics.add(group.topic)
        for lease in acks:
            self.pin(session, group, lease, "ack")
        self.take(session, group, rows)
        expect(not (group.paused and rows), "%s is paused", group.name)
        if len(rows) < count and not group.paused:
            self.check_dry(session, group, part)
        if own:
            self.commit(session)

    # ------------------------------------------------------ ack, nack, extend

    def may_act(self, session, lease):
        return lease.state == "leased" or \
            (lease.state == "pinned" and lease.pinner is session)

    def pin(self, session, group, lease, kind):
        session.topics.add(group.topic)
        lease.state = "pinned"
        lease.pinner = session
        lease.actions.append((session.levels[-1], kind))
        session.levels[-1].pinned.append((group, lease))

    def pick_receipts(self, session):
        """(receipt, group, lease); the latter two None for a stale one."""
        group = self.pick_group()
        picked = []
        live = [w for w in group.leases.values() if w.receipt is not None]
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            if group.topic.stale and self.rng.random() < 0.1:
                # The latest ones are the most interesting.
                back = self.rng.randrange(min(100, len(group.topic.stale)))
                picked.append((group.topic.stale[-1 - back], None, None))
            elif live:
                lease = self.rng.choice(live)
                picked.append((lease.receipt, group, lease))
        return picked

    def settle_some(self, session):
        picked = self.pick_receipts(session)
        if not picked:
            return
        kind = self.rng.choice(("ack", "ack", "ack", "ack", "nack", "nack",
                                "delay"))
        way = self.rng.choice(("try", "array", "one")) if kind == "ack" else \
            self.rng.choice(("array", "one"))
        if way == "one":
            picked = picked[:1]
        good = [p[2] is not None and self.may_act(session, p[2])
                for p in picked]
        array = "ARRAY[%s]" % ",".join("'%s'" % p[0] for p in picked)
        more = ", '1 day'" if kind == "delay" else ""
        if way == "try":
            text = "SELECT accepted FROM narad.try_ack(%s)" % array
        elif way == "array":
            text = "SELECT narad.%s(%s%s)" % (
                "ack" if kind == "ack" else "nack", array, more)
        else:
            text = "SELECT narad.%s('%s'%s)" % (
                "ack" if kind == "ack" else "nack", picked[0][0], more)
        rows = self.run(session, text)
        if way == "try":
            expect(not isinstance(rows, str), "try_ack fails: %s", rows)
            expect([r[0] for r in rows] == good, "I4: %s, not %s: %s",
                   rows, good, self.describe(picked))
        elif all(good):
            expect(not isinstance(rows, str), "I4: %s fails: %s: %s", kind,
                   rows, self.describe(picked))
        else:
            expect(rows == "NR410", "I4: stale %s: %s: %s", kind, rows,
                   self.describe(picked))
            return
        own = self.auto(session)
        for (_, group, lease), accepted in zip(picked, good):
            if accepted:
                self.pin(session, group, lease, kind)
        if own:
            self.commit(session)

    def describe(self, picked):
        return [(p[0], p[2] and (p[1].topic.name, p[1].name, p[2].where,
                                 p[2].state, p[2].deliveries))
                for p in picked]

    def expire(self, session):
        """extend() acts at once, and a millisecond is soon over."""
        group = self.pick_group()
        leases = [w for w in group.leases.values() if w.state == "leased"]
        if not leases or session.failed:
            return
        lease = self.rng.choice(leases)
        rows = self.run(session, "SELECT narad.extend('%s', '%s')" %
                        (lease.receipt, "1 ms"))
        expect(not isinstance(rows, str), "extend fails: %s", rows)
        if session.is_open:
            session.topics.add(group.topic)
        time.sleep(0.003)
        self.give_back(group, lease)

    def extend(self, session):
        group = self.pick_group()
        leases = [w for w in group.leases.values() if w.state == "leased"]
        if not leases or session.failed:
            return
        lease = self.rng.choice(leases)
        rows = self.run(session, "SELECT narad.extend('%s')" % lease.receipt)
        expect(not isinstance(rows, str), "extend fails: %s", rows)
        if session.is_open:
            session.topics.add(group.topic)

    # ---------------------------------------------------------------- moving

    def seek(self, session):
        group = self.pick_group()
        topic = group.topic
        part = self.rng.randrange(topic.npartitions)
        if topic.high[part] < topic.base[part]:
            return
        low, end = self.must(self.control, "SELECT earliest, end_offset FROM"
                             " narad.offsets('%s') WHERE partition = %d"
                             % (topic.name, part))[0]
        target = max(low, end - self.rng.randrange(30))
        rows = self.run(session, "SELECT narad.seek('%s', '%s', %d, %d)" %
                        (topic.name, group.name, part, target))
        expect(not isinstance(rows, str), "seek fails: %s", rows)
        if session.is_open:
            session.topics.add(topic)
            session.has_xid = True
            session.has_sought = True
        self.move(group, part, target)

    def move(self, group, part, target):
        for lease in [w for w in group.leases.values() if w.where[0] == part]:
            if lease.receipt is not None:
                group.topic.stale.append(lease.receipt)
            lease.receipt = None
            del group.leases[lease.where]
        group.settled = {w for w in group.settled if w[0] != part}
        group.maybe = {w: t for w, t in group.maybe.items() if w[0] != part}
        group.fresh[part] = {off for p, off in group.topic.messages
                             if p == part and off >= target}
        group.start[part] = target
        group.frontier.pop(part, None)

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
        start = self.rng.randrange(bounds[0], bounds[1] + 1)
        rows = self.run(session, "SELECT msg_offset FROM narad.fetch('%s', %d,"
                        " %d, 20)" % (topic.name, part, start))
        expect(not isinstance(rows, str), "fetch fails: %s", rows)
        wanted = sorted(off for p, off in topic.messages
                        if p == part and start <= off < bounds[1])
        if session.is_open:
            session.topics.add(topic)
        expect([r[0] for r in rows] == wanted[:20], "I7: fetch of %s/%d from "
               "%d: %s, not %s", topic.name, part, start,
               [r[0] for r in rows], wanted[:20])

    def check_views(self):
        """I6, and that the engine's books agree with ours."""
        for topic in self.topics:
            for group in topic.groups.values():
                self.check_frontier(topic, group)
                self.check_leases(topic, group)
            rows = self.must(self.control, "SELECT count(*) FROM %s"
                             % topic.name)
            expect(rows[0][0] == len(topic.messages), "%s has %d rows, not %d",
                   topic.name, rows[0][0], len(topic.messages))
            rows = self.must(self.control, "SELECT * FROM narad.verify('%s')"
                             % topic.name)
            expect(not rows, "verify: %s", rows)

    def check_frontier(self, topic, group):
        rows = self.must(self.control, "SELECT partition, frontier FROM"
                         " narad.groups WHERE topic = '%s'::regclass AND"
                         " consumer_group = '%s'" % (topic.name, group.name))
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
        rows = self.must(self.control, "SELECT partition, msg_offset, pinned"
                         " FROM narad.leases WHERE topic = '%s'::regclass AND"
                         " consumer_group = '%s' AND (pinned OR expires_at >"
                         " clock_timestamp())" % (topic.name, group.name))
        ours = sorted((w.where[0], w.where[1], w.state == "pinned")
                      for w in group.leases.values()
                      if w.state in ("leased", "pinned"))
        expect(sorted(rows) == ours, "leases of %s %s: %s, not %s",
               topic.name, group.name, sorted(set(rows) ^ set(ours))[:6],
               "ours")

    # -------------------------------------------- what changes more at once

    def change_group(self, session):
        group = self.pick_group()
        topic = group.topic
        dice = self.rng.random()
        self.history.append(("control", "group %s %s %.2f" %
                             (topic.name, group.name, dice)))
        if group.paused or dice < 0.5:
            self.must(self.control, "SELECT narad.%s_group('%s', '%s')" %
                      ("resume" if group.paused else "pause", topic.name,
                       group.name))
            group.paused = not group.paused
        elif dice < 0.6 and group.name != "default":
            self.must(self.control, "SELECT narad.drop_group('%s', '%s')" %
                      (topic.name, group.name))
            self.forget(group)
            self.make_group(topic, group.name)

    def forget(self, group):
        group.gone = True
        group.topic.stale += [w.receipt for w in group.leases.values()
                              if w.receipt is not None]
        for lease in group.leases.values():
            lease.receipt = None
        group.leases = {}

    def truncate(self, session):
        topic = self.rng.choice(self.topics)
        if any(topic in s.topics for s in self.sessions) or \
                any(topic in p[2] for p in self.prepared):
            return
        self.history.append(("control", "truncate " + topic.name))
        self.must(self.control, "SELECT narad.purge_topic('%s')" % topic.name)
        topic.messages = {}
        topic.base = [high + 1 for high in topic.high]
        for name, group in list(topic.groups.items()):
            self.forget(group)
            successor = Group(topic, name)
            successor.paused = group.paused
            topic.groups[name] = successor

    def kill(self, session):
        """The backend dies, its transaction with it."""
        pid = self.must(session, "SELECT pg_backend_pid()")[0][0] \
            if not session.failed else session.conn.get_backend_pid()
        self.history.append((self.sessions.index(session), "killed"))
        self.must(self.control, "SELECT pg_terminate_backend(%d, 10000)" % pid)
        session.conn.close()
        self.roll_back(session, 0)
        self.end(session)
        session.connect()

    def server(self, *args):
        subprocess.run([self.args.pg_ctl, "-D", self.args.data, "-w", "-s"] +
                       list(args), check=True, stdout=subprocess.DEVNULL)

    def restart(self, session):
        """A stop, clean or not: leases are forgotten, acks are not."""
        mode = self.rng.choice(("immediate", "fast"))
        self.history.append(("control", mode))
        now = time.monotonic()
        self.server("stop", "-m", mode)
        self.server("start", "-l", self.args.log)
        for one in self.sessions:
            self.roll_back(one, 0)
            one.connect()
        self.control.connect()
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
        # None: may come again.
        for where, when in list(group.maybe.items()):
            if when is None:
                continue
            if mode == "immediate" and now - when < 4 * FLUSH + 1:
                group.maybe[where] = None
                group.frontier = {}
            else:
                del group.maybe[where]

    # --------------------------------------------------------------- the run

    OPERATIONS = (("produce", 22), ("consume", 26), ("settle_some", 26),
                  ("begin", 7), ("end_transaction", 9), ("savepoint", 3),
                  ("end_savepoint", 3), ("extend", 1), ("expire", 1.5),
                  ("fetch", 2), ("change_group", 0.3), ("prepare", 0.7),
                  ("seek", 0.3), ("kill", 0.1), ("truncate", 0.05))

    def one(self):
        session = self.rng.choice(self.sessions)
        name = self.rng.choices([o[0] for o in self.OPERATIONS],
                                [o[1] for o in self.OPERATIONS])[0]
        if session.failed and name not in ("end_transaction", "end_savepoint",
                                           "kill"):
            name = self.rng.choice(("end_transaction", "end_savepoint"))
        self.counts[name] = self.counts.get(name, 0) + 1
        getattr(self, name)(session)

    def go(self):
        crash_every = max(1, self.args.operations // (self.args.restarts + 1))
        for n in range(1, self.args.operations + 1):
            self.one()
            if n % 2500 == 0:
                self.check_views()
                self.trim()
            if n % crash_every == 0 and self.args.pg_ctl:
                self.restart(None)
        for session in self.sessions:
            if session.is_open:
                self.end_transaction(session)
        while self.prepared:
            self.end_prepared()
        self.drain()
        self.check_views()

    def trim(self):
        """Keeps the books short."""
        del self.history[:-400]
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
        for topic in self.topics:
            for group in topic.groups.values():
                if group.paused:
                    self.must(self.control, "SELECT narad.resume_group('%s',"
                              " '%s')" % (topic.name, group.name))
                    group.paused = False
                while self.drain_some(session, group):
                    pass

    def drain_some(self, session, group):
        rows = self.must(session, "SELECT receipt, partition, msg_offset,"
                         " deliveries FROM narad.consume('%s', 1000,"
                         " consumer_group => '%s')"
                         % (group.topic.name, group.name))
        own = self.auto(session)
        self.take(session, group, rows)
        self.commit(session)
        live = [w for w in group.leases.values() if w.state == "leased"]
        if live:
            self.must(session, "SELECT narad.ack(ARRAY[%s])" %
                      ",".join("'%s'" % w.receipt for w in live))
            for lease in live:
                self.settle(group, lease, False)
            return True
        self.check_dry(session, group, None)
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--seed", type=int,
                        default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--operations", type=int, default=20000)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--show", type=int, default=60)
    parser.add_argument("--pg-ctl")
    parser.add_argument("--data")
    parser.add_argument("--log")
    args = parser.parse_args()
    print("seed %d, %d operations" % (args.seed, args.operations))
    driver = Driver(args)
    try:
        driver.go()
    except Mismatch as mismatch:
        print("mismatch after %d operations: %s" %
              (sum(driver.counts.values()), mismatch))
        for who, text in driver.history[-args.show:]:
            print("  %s: %s" % (who, text))
        return 1
    print("agreed: " + ", ".join("%s %d" % c for c in
                                 sorted(driver.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
