# Copyright (c) 2026, the Narad authors
"""What the model knows: topics, groups, leases, sessions, and what becomes of
them when a transaction ends.

Times are bounds.  Something that is due between two moments may be handed out
from the first on, and has to be from the second on; what lies between is the
time that a statement took.
"""

import select
import time

import psycopg2
from psycopg2 import extensions

PATIENCE = 60                   # seconds, until something is taken for lost
DAY = 86400.0
UNLIMITED = 100000
MOVING = 2.0                    # from a move's commit to what it frees, at most


class Mismatch(Exception):
    pass


def expect(condition, text, *args):
    if not condition:
        raise Mismatch(text % args)


class Clock:
    """When the last statement was sent, and when its answer was there."""
    sent = done = 0.0           # monotonic, as leases are timed
    wall_sent = wall_done = 0.0     # wall clock, as deliver_at is


CLOCK = Clock()


class Message:
    __slots__ = ("part", "off", "key", "seq", "due", "state", "owner",
                 "origin", "serial", "is_released")

    def __init__(self, part, off, key=None):
        self.part = part
        self.off = off
        self.key = key
        self.seq = None         # number of the commit; None: open
        self.due = None         # (from, to), wall clock; None: no delay
        self.state = "open"     # open, committed, dead
        self.owner = None       # session, or gid; while open
        self.origin = None      # of a dead letter: (group, where)
        self.serial = 0         # ... and when it was seen
        self.is_released = False    # produced in a savepoint that is none now

    @property
    def where(self):
        return (self.part, self.off)


class Lease:
    """What a group knows of a message that is neither fresh nor settled."""
    __slots__ = ("where", "state", "receipt", "deliveries", "known", "due",
                 "taker", "taker_aborted", "actions", "pinner", "may_die",
                 "is_suspect", "passed", "claim")

    def __init__(self, where):
        self.where = where
        self.state = "leased"   # leased, pinned, returned, delayed, dead
        self.receipt = None
        self.deliveries = 0
        self.known = True       # deliveries is exact
        self.due = None         # of a delayed one: (from, to), monotonic
        self.taker = None       # session whose open transaction took it
        self.taker_aborted = False
        self.pinner = None
        self.actions = []       # of the pinner: (level, kind, delay)
        self.may_die = False    # returned; may be a dead letter already
        self.is_suspect = False     # may be out alone, after a crash
        self.passed = False     # taken by who had acked the one before it
        self.claim = 0          # in which order, the first time; 0: not yet

    def is_acked_by(self, session):
        return self.state == "pinned" and self.pinner is session and \
            self.actions[-1][1] == "ack"

    def is_dying(self):
        return self.state == "dead" or self.may_die


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
        self.used = set()       # partitions, since the server started
        self.top = [-1] * topic.npartitions     # the highest surely settled
        # Up to here a crash may have made suspects, where deliveries count:
        # to the end of the partition as it was at the first use after it.
        self.suspects_to = [-1] * topic.npartitions
        # By key, where that is ordered: what is not settled, and whose turn.
        self.line = {}
        self.turn = {}
        self.moved = {}         # ... of which one was seen moved: -> when

    def in_flight(self, part):
        return sum(1 for lease in self.leases.values()
                   if lease.where[0] == part and lease.state == "leased")

    def settled_end(self, part):
        """Bounds of what comes after the highest settled offset.  Whatever is
        not known to be unsettled may be dead, and have been looked at."""
        high = self.topic.high[part]
        while high >= 0 and self.is_unsettled((part, high)):
            high -= 1
        return max(self.top[part] + 1, self.start[part]), high + 1

    def is_unsettled(self, where):
        lease = self.leases.get(where)
        return where[1] in self.fresh[where[0]] or where in self.topic.open \
            or (lease is not None and not lease.is_dying())

    def holes(self, part):
        """Bounds of what counts against max_acked_ahead: leased or returned,
        below the highest settled offset."""
        low, high = self.settled_end(part)
        now = time.monotonic()
        least = most = 0
        for where, lease in self.leases.items():
            if where[0] != part or where[1] >= high:
                continue
            if lease.state in ("leased", "returned"):
                most += 1
                least += where[1] < low and lease.known and not lease.may_die
            elif lease.state == "delayed" and lease.due[0] <= now:
                most += 1
        return least, most

    def place(self, where):
        """(partition, key) where the key's order counts, else None."""
        if not self.topic.ordered:
            return None
        key = self.topic.messages[where].key
        return None if key is None else (where[0], key)

    def line_up(self, where):
        place = self.place(where)
        if place is not None:
            self.line.setdefault(place, set()).add(where[1])

    def leave_line(self, where):
        """Settled: the next that has been claimed has the turn, or nobody."""
        place = self.place(where)
        if place is None:
            return
        self.line[place].discard(where[1])
        if self.turn.get(place) != where[1]:
            return
        claimed = [self.leases[(where[0], off)] for off in self.line[place]
                   if (where[0], off) in self.leases and
                   self.leases[(where[0], off)].claim > 0]
        if claimed:
            self.turn[place] = min(claimed, key=lambda c: c.claim).where[1]
        else:
            del self.turn[place]

    def was_just_moved(self, place):
        """Others see a move a moment before it frees the rest of its key; and
        one that is seen here after a consume may have come after it."""
        return time.monotonic() - self.moved.get(place, -MOVING) < MOVING

    def add(self, message):
        if message.off >= self.start[message.part]:
            self.fresh[message.part].add(message.off)
            self.line_up(message.where)

    def is_timed(self):
        """May something become available while nobody does anything?"""
        return self.topic.is_dead or self.topic.limit or \
            any(lease.state == "delayed" for lease in self.leases.values()) or \
            any(self.topic.messages[(part, off)].due
                for part, fresh in enumerate(self.fresh) for off in fresh)

    def may_be_suspect(self, where):
        """After a crash: is it handed out alone?"""
        if not self.topic.limit or where[1] > self.suspects_to[where[0]]:
            return False
        lease = self.leases.get(where)
        return lease is None or not lease.known or \
            (lease.is_suspect and lease.state in ("leased", "pinned"))

    def has_suspects(self, part):
        return self.suspects_to[part] >= 0 and (
            any(self.may_be_suspect((part, off)) for off in self.fresh[part])
            or any(self.may_be_suspect(where) for where in self.leases
                   if where[0] == part))


class Topic:
    """Its settings say of which kind it is."""

    def __init__(self, name, npartitions=1, max_in_flight=1024, ordered=False,
                 late=False, limit=0, retry=0.0, once=False, ahead=UNLIMITED,
                 drops=None):
        self.name = name
        self.npartitions = npartitions
        self.max_in_flight = max_in_flight
        self.ahead = ahead      # max_acked_ahead
        self.ordered = ordered
        self.late = late        # produced, and given back, with a delay
        self.limit = limit      # max_deliveries
        self.retry = retry      # retry_delay, seconds; the backoff is 2
        self.once = once        # with ids
        self.drops = drops      # what retention does: "settled", or "oldest"
        self.earliest = [0] * npartitions
        self.is_dead = name == "m_dead"
        self.high = [-1] * npartitions
        self.groups = {}
        self.empty()
        self.stale = []         # receipts of former leases

    def empty(self):
        """Made, or truncated."""
        self.messages = {}      # committed: where -> Message
        self.open = {}          # of open transactions
        self.ghosts = {}        # rolled back to a savepoint: -> session
        self.base = [high + 1 for high in self.high]
        self.ids = {}           # dedup_id -> Message
        self.nids = 0
        self.producers = {}

    def value(self):
        """Of a message; where something is dropped, one fills a page."""
        return "m_value()" if self.drops else "'1'"

    def in_transit(self, place, group):
        """What of a key may yet become messages."""
        for mapping in (self.open, self.ghosts):
            for message in mapping.values():
                if (message.part, message.key) == place and \
                        message.off >= group.start[message.part]:
                    yield message, mapping is self.open


class Producer:
    def __init__(self):
        self.state = None       # (epoch, last, ((sequence, position), ...))
        self.holder = None      # session, or gid, that has it locked


class Level:
    """One nesting level of a transaction."""

    def __init__(self):
        self.produced = []      # (topic, Message)
        self.taken = []         # (group, lease, receipt)
        self.pinned = []        # (group, lease)
        self.undo = []          # (producer, its state, its holder)

    def absorb(self, level):
        self.produced += level.produced
        self.taken += level.taken
        self.pinned += level.pinned
        self.undo += level.undo


class Session:
    """A connection on which a statement can be under way."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.connect()

    def connect(self):
        self.conn = psycopg2.connect(self.dsn, async_=True)
        self.is_answered = False
        self.error = None
        expect(self.is_done(PATIENCE), "no connection")
        self.pid = self.conn.get_backend_pid()
        self.cur = self.conn.cursor()
        self.task = None        # what the session is waiting in
        self.forget_transaction()
        self.sql("SET narad.max_batch_size = '64kB'")

    def forget_transaction(self):
        self.levels = []
        self.failed = False
        self.has_xid = False
        self.has_sought = False
        self.snapshot = None    # number of the commit seen, in RR
        self.is_rr = False
        self.topics = set()     # locked by the open transaction

    def is_done(self, timeout=0.0):
        """Is the answer there?"""
        if self.is_answered:
            return True
        try:
            state = self.conn.poll()
            while state != extensions.POLL_OK:
                reads = [self.conn] if state == extensions.POLL_READ else []
                writes = [self.conn] if state == extensions.POLL_WRITE else []
                if not any(select.select(reads, writes, [], timeout)):
                    return False
                state = self.conn.poll()
        except psycopg2.Error as error:
            self.error = error
        self.is_answered = True
        return True

    def start(self, text):
        self.is_answered = False
        self.error = None
        self.sent = time.monotonic()
        self.wall_sent = time.time()
        self.cur.execute(text)

    def result(self):
        """Rows, or the error's SQLSTATE."""
        CLOCK.sent, CLOCK.wall_sent = self.sent, self.wall_sent
        CLOCK.done, CLOCK.wall_done = time.monotonic(), time.time()
        if self.error is not None:
            if self.error.pgcode is None:
                raise self.error
            return self.error.pgcode
        return self.cur.fetchall() if self.cur.description else []

    def sql(self, text):
        self.start(text)
        expect(self.is_done(PATIENCE), "no answer in %d s: %s", PATIENCE, text)
        return self.result()

    @property
    def is_open(self):
        return bool(self.levels)


class Books:
    """What transactions come to."""

    def publish(self, topic, message):
        message.seq = self.ncommits
        message.state = "committed"
        message.owner = None
        topic.open.pop(message.where, None)
        topic.messages[message.where] = message
        for group in topic.groups.values():
            group.add(message)

    def settle(self, group, lease, has_xid):
        if group.leases.get(lease.where) is not lease:
            return
        del group.leases[lease.where]
        group.settled.add(lease.where)
        group.top[lease.where[0]] = max(group.top[lease.where[0]],
                                        lease.where[1])
        group.leave_line(lease.where)
        if not has_xid:
            group.maybe[lease.where] = time.monotonic()
        if lease.receipt is not None:
            group.topic.stale.append(lease.receipt)

    def give_back(self, group, lease, delay=0.0):
        """A lease ends.  It does so within the last statement."""
        if group.leases.get(lease.where) is not lease:
            return
        group.topic.stale.append(lease.receipt)
        if group.topic.limit and lease.deliveries >= group.topic.limit:
            lease.state = "dead"
        elif delay > 0:
            lease.state = "delayed"
            lease.due = (CLOCK.sent + delay, CLOCK.done + delay)
        else:
            lease.state = "returned"
        lease.receipt = None
        lease.taker = None
        lease.taker_aborted = False
        lease.pinner = None
        lease.actions = []

    def retry_delay(self, group, lease):
        return group.topic.retry * 2 ** (lease.deliveries - 1)

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
            self.give_back(group, lease, self.retry_delay(group, lease))
        else:
            lease.state = "leased"

    def roll_back(self, session, first):
        """Undoes the levels from this one on."""
        levels = session.levels[first:]
        for level in levels:
            for topic, message in level.produced:
                self.drop(topic, message)
                # Until the end of the transaction nobody is told.
                if first > 0:
                    topic.ghosts[message.where] = message
                    message.owner = session
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
                    self.give_back(group, lease,
                                   self.retry_delay(group, lease))
        for level in reversed(levels):
            for producer, state, holder in reversed(level.undo):
                producer.state, producer.holder = state, holder
        del session.levels[first:]
        if first == 0:
            self.bury(session)

    def drop(self, topic, message):
        message.state = "dead"
        topic.open.pop(message.where, None)

    def bury(self, session):
        for topic in session.topics:
            topic.ghosts = {w: m for w, m in topic.ghosts.items()
                            if m.owner is not session}

    def commit(self, session):
        level = Level()
        for one in session.levels:
            level.absorb(one)
        session.levels = []
        self.bury(session)
        if session.has_xid:
            self.durable = self.serial
        if level.produced:
            self.ncommits += 1
        for topic, message in level.produced:
            self.publish(topic, message)
        for producer, _, _ in level.undo:
            producer.holder = None
        for group, lease, receipt in level.taken:
            if lease.receipt == receipt:
                lease.taker = None
        seen = set()
        for group, lease in level.pinned:
            if id(lease) in seen or lease.pinner is not session or group.gone:
                continue
            seen.add(id(lease))
            _, kind, delay = lease.actions[-1]
            if kind == "ack":
                self.settle(group, lease, session.has_xid)
            else:
                self.give_back(group, lease, delay if kind == "delay" else
                               self.retry_delay(group, lease))
        session.forget_transaction()

    def auto(self, session):
        """A level for a statement that is a transaction of its own."""
        if not session.is_open:
            session.levels = [Level()]
            return True
        return False

    def fail(self, session):
        """The innermost level is undone at once, the others when told."""
        if session.is_open:
            session.failed = True
            self.roll_back(session, len(session.levels) - 1)
            session.levels.append(Level())

    def move(self, group, part, target):
        """The group goes on elsewhere: its leases there are void."""
        topic = group.topic
        for lease in [w for w in group.leases.values() if w.where[0] == part]:
            if lease.receipt is not None:
                topic.stale.append(lease.receipt)
            if lease.is_dying():
                self.orphan(group, lease.where)
            lease.receipt = None
            del group.leases[lease.where]
        group.settled = {w for w in group.settled if w[0] != part}
        group.maybe = {w: t for w, t in group.maybe.items() if w[0] != part}
        group.line = {p: l for p, l in group.line.items() if p[0] != part}
        group.turn = {p: o for p, o in group.turn.items() if p[0] != part}
        group.fresh[part] = set()
        group.start[part] = target
        group.top[part] = -1
        for message in topic.messages.values():
            if message.part == part:
                group.add(message)
        group.frontier.pop(part, None)

    def forget(self, group):
        group.gone = True
        for lease in group.leases.values():
            if lease.receipt is not None:
                group.topic.stale.append(lease.receipt)
            if lease.is_dying():
                self.orphan(group, lease.where)
            lease.receipt = None
        group.leases = {}

    # ------------------------------------------ what may, and what has to be

    def is_available(self, group, where):
        """May it have been handed out by the last statement?"""
        lease = group.leases.get(where)
        if lease is None:
            due = group.topic.messages[where].due
            return where[1] in group.fresh[where[0]] and \
                (not due or due[0] <= CLOCK.wall_done)
        return lease.state == "returned" or \
            (lease.state == "delayed" and lease.due[0] <= CLOCK.done)

    def neighbours(self, group, where):
        """For messages: who else is of a key, and in which state."""
        place = group.place(where) if where else None
        if place is None:
            return ""
        return "turn of %s, " % group.turn.get(place) + ", ".join(
            "%d %s" % (off, lease.state if lease else "fresh")
            for off, lease in ((off, group.leases.get((where[0], off)))
                               for off in sorted(group.line[place])))

    def describe(self, group, where):
        lease = group.leases.get(where)
        if lease is None and where[1] in group.fresh[where[0]]:
            due = group.topic.messages[where].due
            return "due in %.6f s" % (due[0] - CLOCK.wall_done if due else 0)
        if lease is not None and lease.state == "delayed":
            return "delayed for %.6f s" % (lease.due[0] - CLOCK.done)
        return lease.state if lease else "settled"

    def doubt(self, group):
        """Who was cancelled may have been handed what is available."""
        if group.topic.is_dead:
            self.learn()        # that, too, which was moved and not seen yet
        fresh = [(part, off) for part, offs in enumerate(group.fresh)
                 for off in offs]
        for where in fresh + list(group.leases):
            if self.is_available(group, where):
                lease = group.leases.setdefault(where, Lease(where))
                lease.state = "returned"
                lease.known = False
                # It may wait for retry_delay.
                lease.may_die = bool(group.topic.limit or group.topic.retry)
                group.fresh[where[0]].discard(where[1])

    def visible(self, session, group, where):
        if session.snapshot is None:
            return True
        return group.topic.messages[where].seq <= session.snapshot

    def who_blocks(self, session, group, where):
        """Order by key: why a message must not be handed out, or None."""
        topic = group.topic
        place = group.place(where)
        if place is None:
            return None
        turn = group.turn.get(place)
        for off in group.line[place]:
            lease = group.leases.get((where[0], off))
            if off == where[1] or (lease and lease.is_acked_by(session)):
                continue
            if lease and lease.state in ("leased", "pinned") and \
                    not (lease.passed and where in group.leases):
                return "%d of its key is in flight" % off
            if turn == off:
                return "%d of its key is %s" % (off, lease.state)
            if off < where[1] and turn != where[1] and \
                    ((lease and lease.claim) or
                     not topic.messages[(where[0], off)].due):
                return "%d of its key is earlier" % off
        for message, is_open in topic.in_transit(place, group):
            if is_open and message.off < where[1] != turn and not message.due:
                return "%d of its key is open" % message.off
        return None

    def may_be_blocked(self, session, group, where):
        """Order by key: is there a reason not to hand out a message?"""
        topic = group.topic
        place = group.place(where)
        if place is None:
            return False
        if group.was_just_moved(place):
            return True
        has_turn = group.turn.get(place) == where[1]
        for off in group.line[place]:
            lease = group.leases.get((where[0], off))
            if off == where[1]:
                continue
            if lease and lease.is_acked_by(session):
                continue
            if has_turn and (not lease or
                             lease.state not in ("leased", "pinned")):
                continue
            if lease or off < where[1]:
                return True
        if has_turn:
            return False
        return any(message.off < where[1]
                   for message, _ in topic.in_transit(place, group)) or \
            any(when is None and group.place(other) == place
                for other, when in group.maybe.items() if other != where)

    def left(self, session, group, part, now, wall, since=None):
        """What a consume that began at this time has to find."""
        topic = group.topic
        left = []
        for p in range(topic.npartitions):
            if group.paused or part not in (None, p):
                continue
            has_suspects = group.has_suspects(p)
            out = [w for w, lease in group.leases.items() if w[0] == p and
                   lease.state in ("leased", "pinned")]
            if topic.ordered and topic.limit and out and \
                    group.suspects_to[p] >= 0:
                continue
            is_out = has_suspects and any(group.may_be_suspect(w) for w in out)
            some = [(p, off) for off in group.fresh[p]
                    if not topic.messages[(p, off)].due or
                    topic.messages[(p, off)].due[1] <= wall]
            some += [w for w, lease in group.leases.items() if w[0] == p and
                     not lease.may_die and
                     (lease.state == "returned" or
                      (lease.state == "delayed" and lease.due[1] <= now))]
            some = [w for w in some if self.visible(session, group, w) and
                    (since is None or topic.messages[w].seq <= since) and
                    not (is_out and group.may_be_suspect(w)) and
                    not self.may_be_blocked(session, group, w)]
            if some and group.in_flight(p) < topic.max_in_flight:
                left += self.not_ahead(group, p, some)
        return left

    def not_ahead(self, group, part, some):
        """What of these may be had, whatever the cap is."""
        if group.topic.ahead == UNLIMITED or \
                group.holes(part)[1] < group.topic.ahead:
            return some
        end = group.settled_end(part)[0]
        return [w for w in some if w[1] < end]

    def check_ahead(self, group, rows):
        """With so many holes nothing comes but what closes one."""
        for part in {row[1] for row in rows} \
                if group.topic.ahead != UNLIMITED else ():
            beyond = [r[2] for r in rows if r[1] == part and
                      r[2] >= group.settled_end(part)[1]]
            expect(not beyond or group.holes(part)[0] < group.topic.ahead,
                   "%s %s %d: %s with %d holes, and at most %d is settled",
                   group.topic.name, group.name, part, beyond,
                   group.holes(part)[0], group.settled_end(part)[1] - 1)

    # ----------------------------------------------------------- handing out

    def take(self, session, group, rows):
        """What consume handed out; the last columns are of dead letters."""
        for receipt, part, off, deliveries, headers in rows:
            where = (part, off)
            topic = group.topic
            if where not in topic.messages and topic.is_dead:
                self.meet(where, headers)
            expect(where in topic.messages,
                   "I3: %s %s is not committed", topic.name, where)
            lease = group.leases.get(where) or self.come_again(group, where)
            if not self.is_available(group, where):
                raise Mismatch("I2: %s %s %s is %s" % (
                    topic.name, group.name, where,
                    self.describe(group, where)))
            # Of a dead letter only the time when it was seen is known.
            expect(self.visible(session, group, where) or
                   topic.messages[where].origin,
                   "%s is newer than the snapshot", where)
            why = self.who_blocks(session, group, where)
            if why is not None and topic.limit:
                self.learn()    # it may have been moved
                why = self.who_blocks(session, group, where)
            if why is not None:
                raise Mismatch("order: %s %s %s is delivered, and %s: %s" % (
                    topic.name, group.name, where, why,
                    self.neighbours(group, where)))
            self.hand_out(session, group, where, receipt, deliveries)

    def come_again(self, group, where):
        """The server died before the ack was on disk."""
        if where not in group.settled or \
                group.maybe.get(where, 0.0) is not None:
            return None
        group.settled.discard(where)
        del group.maybe[where]
        return self.revive(group, where)

    def revive(self, group, where):
        lease = Lease(where)
        lease.known = False
        lease.state = "returned"
        lease.may_die = bool(group.topic.limit)
        group.leases[where] = lease
        group.line_up(where)
        return lease

    def hand_out(self, session, group, where, receipt, deliveries):
        topic = group.topic
        group.fresh[where[0]].discard(where[1])
        group.used.add(where[0])
        is_suspect = group.may_be_suspect(where)
        lease = group.leases.setdefault(where, Lease(where))
        lease.is_suspect = is_suspect
        group.suspects_to[where[0]] = min(group.suspects_to[where[0]],
                                          topic.high[where[0]])
        if lease.known:
            expect(deliveries == lease.deliveries + 1,
                   "%d deliveries of %s, not %d", deliveries, where,
                   lease.deliveries + 1)
        expect(not topic.limit or deliveries <= topic.limit,
               "delivery %d of %s %s", deliveries, topic.name, where)
        place = group.place(where)
        if place is not None:
            turn = group.turn.setdefault(place, where[1])
            lease.passed = turn != where[1]
        self.nclaims += 1
        lease.claim = lease.claim or self.nclaims
        lease.deliveries = deliveries
        lease.known = True
        lease.may_die = False
        lease.state = "leased"
        lease.receipt = receipt
        lease.taker = session
        lease.taker_aborted = False
        session.levels[-1].taken.append((group, lease, receipt))
