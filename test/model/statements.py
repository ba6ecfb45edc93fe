# Copyright (c) 2026, the Narad authors
"""The statements of one session, each with what its answer may be."""

import time

from books import CLOCK, DAY, Level, Message, Producer, expect


def quoted(receipts):
    return "ARRAY[%s]" % ",".join("'%s'" % r for r in receipts)


class Statements:

    def must(self, session, text):
        if session is not self.control:
            self.history.append((self.sessions.index(session), text))
        rows = session.sql(text)
        expect(not isinstance(rows, str), "error %s in: %s", rows, text)
        return rows

    def run(self, session, text):
        """A statement; an error fails the transaction."""
        who = self.sessions.index(session)
        self.history.append((who, text))
        if session.is_open and session.is_rr and session.snapshot is None:
            session.snapshot = self.ncommits
        rows = session.sql(text)
        self.history.append((who, "-> %s" % (rows,)))
        if isinstance(rows, str):
            self.fail(session)
        return rows

    # ----------------------------------------------------------- transactions

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
            session.forget_transaction()
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
            return session.forget_transaction()
        expect(not isinstance(rows, str), "PREPARE fails: %s", rows)
        level = Level()
        for one in session.levels:
            level.absorb(one)
        for _, lease, receipt in level.taken:
            if lease.receipt == receipt:
                lease.taker = None
        for _, message in level.produced:
            if message.state == "open":
                message.owner = gid
        for producer, _, _ in level.undo:
            producer.holder = gid
        for topic in session.topics:
            for message in topic.ghosts.values():
                if message.owner is session:
                    message.owner = gid
        self.prepared.append((gid, level, session.topics))
        self.durable = self.serial
        return session.forget_transaction()

    def end_prepared(self):
        gid, level, topics = self.prepared.pop(
            self.rng.randrange(len(self.prepared)))
        what = self.rng.choice(("COMMIT", "ROLLBACK"))
        self.history.append(("control", "%s PREPARED %s" % (what, gid)))
        self.must(self.control, "%s PREPARED '%s'" % (what, gid))
        if what == "COMMIT":
            self.ncommits += 1
        for topic, message in level.produced:
            if what == "COMMIT":
                self.publish(topic, message)
            else:
                self.drop(topic, message)
        for producer, state, _ in reversed(level.undo):
            producer.holder = None
            if what == "ROLLBACK":
                producer.state = state
        for topic in topics:
            topic.ghosts = {w: m for w, m in topic.ghosts.items()
                            if m.owner != gid}

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
            into.absorb(level)
            for _, message in level.produced:
                message.is_released = True
            for _, lease in level.pinned:
                lease.actions = [(into if a[0] is level else a[0],) + a[1:]
                                 for a in lease.actions]
        del session.levels[depth:]

    # -------------------------------------------------------------- producing

    def produce(self, session):
        topic = self.rng.choice(self.topics)
        if topic.once and self.rng.random() < 0.6:
            if self.rng.random() < 0.5:
                return self.produce_id(session, topic)
            return self.produce_once(session, topic)
        count = self.rng.choice((1, 1, 1, 2, 5))
        part = self.rng.choice((None, self.rng.randrange(topic.npartitions)))
        # Without both it would be the backend's choice, and not replayable.
        keys = [None] * count
        if part is None or topic.ordered:
            keys = [self.some_key(topic) for _ in range(count)]
        named = "" if keys[0] is None else ", key => '%s'" % keys[0] \
            if count == 1 else ", keys => " + quoted(keys)
        if part is not None:
            named += ", partition => %d" % part
        delay, text = self.some_delay(topic)
        named += text
        if count == 1:
            text = "SELECT * FROM narad.produce('%s', %s%s)" % (
                topic.name, topic.value(), named)
        else:
            text = ("SELECT * FROM narad.produce_batch('%s',"
                    " array_fill(%s::jsonb, ARRAY[%d])%s)"
                    % (topic.name, topic.value(), count, named))
        rows = self.run(session, text)
        expect(not isinstance(rows, str), "produce fails: %s", rows)
        expect(len(rows) == count, "%d positions of %d", len(rows), count)
        own = self.auto(session)
        for (p, off), key in zip(rows, keys):
            expect(part is None or p == part, "partition %s", p)
            message = self.appended(session, topic, (p, off), key)
            if callable(delay):
                message.due = delay()
        if own:
            self.commit(session)
        return None

    def some_key(self, topic):
        return "k%d" % self.rng.randrange(6 if topic.ordered else 20)

    def some_delay(self, topic):
        """When it will be due, and how to say so."""
        if not topic.late or self.rng.random() < 0.5:
            return None, ""
        delay = self.rng.choice((0.02, 0.1, 0.3, 3600.0))
        if self.rng.random() < 0.5:
            return (lambda: (CLOCK.wall_sent + delay, CLOCK.wall_done + delay),
                    ", deliver_after => '%d ms'" % (delay * 1000))
        due = round(time.time() + delay, 5)
        return (lambda: (due, due + 0.0001),
                ", deliver_at => to_timestamp(%.5f)" % due)

    def appended(self, session, topic, where, key):
        part, off = where
        expect(off > topic.high[part], "I12: offset %d again in %s/%d",
               off, topic.name, part)
        session.has_xid = True
        session.topics.add(topic)
        topic.high[part] = off
        message = Message(part, off, key)
        message.owner = session
        topic.open[where] = message
        session.levels[-1].produced.append((topic, message))
        return message

    # Once only.  Who would have to wait for another's transaction does so in
    # the background, and only if he has none himself: so there is no deadlock.

    def produce_id(self, session, topic):
        if topic.nids == 0 or self.rng.random() < 0.5:
            topic.nids += 1
            name = topic.nids
        else:
            name = topic.nids - self.rng.randrange(min(topic.nids, 20))
        first = topic.ids.get(name)
        is_blocked = first is not None and first.state == "open" and \
            first.owner is not session
        if is_blocked and (session.is_open or
                           self.is_waited_for(topic)):
            return
        key = self.some_key(topic)
        text = ("SELECT * FROM narad.produce('%s', '1', key => '%s',"
                " dedup_id => 'd%d')" % (topic.name, key, name))

        def check(rows):
            expect(not isinstance(rows, str), "produce fails: %s", rows)
            first = topic.ids.get(name)
            own = self.auto(session)
            session.topics.add(topic)
            if first is None or first.state == "dead":
                topic.ids[name] = self.appended(session, topic, rows[0], key)
            else:
                expect(first.state == "committed" or first.owner is session,
                       "%s d%d is answered, and its first is open",
                       topic.name, name)
                expect(rows[0] == first.where, "%s d%d is at %s, not %s",
                       topic.name, name, rows[0], first.where)
            if own:
                self.commit(session)

        if is_blocked:
            self.block(session, text, topic, check, lambda:
                       first.state != "open" and not
                       (first.is_released and
                        topic.ghosts.get(first.where) is first))
        else:
            check(self.run(session, text))

    def produce_once(self, session, topic):
        name = "p%d" % self.rng.randrange(4)
        producer = topic.producers.setdefault(name, Producer())
        is_blocked = producer.holder not in (None, session)
        if is_blocked and (session.is_open or
                           self.is_waited_for(topic)):
            return
        epoch, last, _ = producer.state or (0, self.rng.randrange(100), ())
        dice = self.rng.random()
        sequence = last + (1 if dice < 0.6 else
                           -self.rng.randrange(8) if dice < 0.9 else
                           2 if dice < 0.93 else 1)
        epoch += 0 if dice < 0.95 else 1 if dice < 0.98 else -1
        if epoch < 0 or sequence < 0:
            return
        key = self.some_key(topic)
        text = ("SELECT * FROM narad.produce_once('%s', '1', '%s', %d, %d,"
                " key => '%s')" % (topic.name, name, sequence, epoch, key))

        def check(rows, state):
            self.check_once(session, topic, producer, state,
                            (epoch, sequence), key, rows)

        if is_blocked:
            # PREPARE hands the lock on, and frees nobody.
            self.block(session, text, topic,
                       lambda rows: check(rows, producer.state),
                       lambda: producer.holder is None)
        else:
            # As it is now: a refusal takes back what its transaction did.
            state = producer.state
            check(self.run(session, text), state)

    def check_once(self, session, topic, producer, state, number, key, rows):
        epoch, sequence = number
        known, last, positions = state or (-1, 0, ())
        wanted = "NR409" if epoch < known else \
            "NR412" if epoch == known and sequence > last + 1 else None
        expect((wanted or rows) == rows and
               (wanted is not None or not isinstance(rows, str)),
               "produce_once: %s, not %s", rows, wanted)
        if wanted is not None:
            return
        own = self.auto(session)
        session.topics.add(topic)
        session.levels[-1].undo.append((producer, producer.state,
                                        producer.holder))
        producer.holder = session
        if epoch == known and sequence <= last:
            place = dict(positions).get(sequence, (None, None))
            expect(rows[0] == place + (True,), "produce_once: %s, not %s",
                   rows, place)
        else:
            expect(not rows[0][2], "number %s for the first time: %s", number,
                   rows)
            self.appended(session, topic, rows[0][:2], key)
            positions = positions if epoch == known else ()
            producer.state = (epoch, sequence,
                              (positions + ((sequence, rows[0][:2]),))[-5:])
        if own:
            self.commit(session)

    # -------------------------------------------------------------- consuming

    def pick_group(self):
        topic = self.rng.choice(self.topics)
        return self.rng.choice(list(topic.groups.values()))

    def consume_text(self, group, count, more):
        return ("SELECT receipt, partition, msg_offset, deliveries, headers"
                " FROM narad.consume('%s', %d, consumer_group => '%s'%s)"
                % (group.topic.name, count, group.name, more))

    def some_acks(self, session, group):
        if self.rng.random() > 0.2:
            return [], ""
        acks = [w for w in group.leases.values()
                if self.may_act(session, w)][:3]
        return acks, ", ack => " + quoted(w.receipt for w in acks) \
            if acks else ""

    def consume(self, session):
        group = self.pick_group()
        part = self.rng.choice((None, None,
                                self.rng.randrange(group.topic.npartitions)))
        count = self.rng.choice((1, 1, 3, 10))
        acks, more = self.some_acks(session, group)
        if part is not None:
            more += ", partition => %d" % part
        since = self.ncommits
        rows = self.run(session, self.consume_text(group, count, more))
        expect(not isinstance(rows, str), "consume fails: %s", rows)
        then = (CLOCK.sent, CLOCK.wall_sent, since)
        own = self.auto(session)
        session.topics.add(group.topic)
        for lease in acks:
            self.pin(session, group, lease, "ack")
        self.check_ahead(group, rows)
        self.take(session, group, rows)
        expect(not (group.paused and rows), "%s is paused", group.name)
        # After a crash messages are handed out one by one, and the next when
        # the one before is settled.
        was_suspect = any(group.leases[(r[1], r[2])].is_suspect for r in rows)
        if max(group.suspects_to) >= 0 and group.topic.limit:
            was_suspect |= bool(acks) or (group.topic.ordered and bool(rows))
        # Its own acks free what is beyond max_acked_ahead only for the next.
        before = self.left(session, group, part, *then) if acks else None
        if own:
            self.commit(session)
        if not self.is_full(group, rows) and len(rows) < count and \
                not was_suspect:
            self.check_dry(session, group, part, then, before)

    def check_dry(self, session, group, part, then, before=None):
        """I1: consume wanted more than it took, so nothing is left."""
        if group.paused:
            return
        if self.left(session, group, part, *then):
            self.wake()         # who sleeps may have it by now
        left = [w for w in self.left(session, group, part, *then)
                if before is None or w in before]
        expect(not left, "I1: %s %s: %s was not delivered: %s",
               group.topic.name, group.name, left[:5],
               self.neighbours(group, left and left[0]))
        if session.is_rr or group.topic.ordered or group.topic.limit:
            return
        for where in [w for w, t in group.maybe.items()
                      if t is None and part in (None, w[0]) and
                      group.in_flight(w[0]) < group.topic.max_in_flight]:
            del group.maybe[where]

    # ------------------------------------------------------ ack, nack, extend

    def may_act(self, session, lease):
        return lease.state == "leased" or \
            (lease.state == "pinned" and lease.pinner is session)

    def pin(self, session, group, lease, kind, delay=0.0):
        session.topics.add(group.topic)
        lease.state = "pinned"
        lease.pinner = session
        lease.actions.append((session.levels[-1], kind, delay))
        session.levels[-1].pinned.append((group, lease))

    def pick_receipts(self, session):
        """(receipt, group, lease); the latter two None for a stale one."""
        group = self.pick_group()
        # Locked whatever becomes of them.
        if session.is_open:
            session.topics.add(group.topic)
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

    def some_end(self, group):
        """How to settle: a kind, and the delay of a nack."""
        kind = self.rng.choice(("ack", "ack", "ack", "ack", "nack", "nack",
                                "delay"))
        if kind != "delay":
            return kind, 0.0
        # A key that rests for a day rests for the whole run.
        return kind, DAY if not group.topic.ordered and \
            self.rng.random() < 0.3 else self.rng.choice((0.02, 0.1, 0.3))

    def settle_some(self, session):
        picked = self.pick_receipts(session)
        if not picked:
            return
        group = picked[0][1] or self.pick_group()
        kind, delay = self.some_end(group)
        way = self.rng.choice(("try", "array", "one")) if kind == "ack" else \
            self.rng.choice(("array", "one"))
        if way == "one":
            picked = picked[:1]
        good = [p[2] is not None and self.may_act(session, p[2])
                for p in picked]
        array = quoted(p[0] for p in picked)
        more = ", '%d ms'" % (delay * 1000) if kind == "delay" else ""
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
                   rows, good, self.receipts(picked))
        elif all(good):
            expect(not isinstance(rows, str), "I4: %s fails: %s: %s", kind,
                   rows, self.receipts(picked))
        else:
            expect(rows == "NR410", "I4: stale %s: %s: %s", kind, rows,
                   self.receipts(picked))
            return
        own = self.auto(session)
        for (_, group, lease), accepted in zip(picked, good):
            if accepted:
                self.pin(session, group, lease, kind, delay)
        if own:
            self.commit(session)

    def receipts(self, picked):
        return [(p[0], p[2] and (p[1].topic.name, p[1].name, p[2].where,
                                 p[2].state, p[2].deliveries))
                for p in picked]

    def expire(self, session):
        """extend() acts at once, and a millisecond is soon over."""
        lease, group = self.extend(session, ", '1 ms'")
        if lease is not None:
            time.sleep(0.003)
            self.give_back(group, lease)

    def extend(self, session, more=""):
        group = self.pick_group()
        leases = [w for w in group.leases.values() if w.state == "leased"]
        if not leases or session.failed:
            return None, None
        lease = self.rng.choice(leases)
        rows = self.run(session, "SELECT narad.extend('%s'%s)" %
                        (lease.receipt, more))
        expect(not isinstance(rows, str), "extend fails: %s", rows)
        if session.is_open:
            session.topics.add(group.topic)
        return lease, group

    def seek(self, session):
        group = self.pick_group()
        topic = group.topic
        part = self.rng.randrange(topic.npartitions)
        if topic.high[part] < topic.base[part] or self.stirs(topic, group):
            return
        low, end = self.must(self.control, "SELECT earliest, end_offset FROM"
                             " narad.offsets('%s') WHERE partition = %d"
                             % (topic.name, part))[0]
        target = min(end, max(low, end - self.rng.randrange(30)))
        self.learn()
        rows = self.run(session, "SELECT narad.seek('%s', '%s', %d, %d)" %
                        (topic.name, group.name, part, target))
        if rows == "NR416" and topic.drops == "settled":
            return              # the worker was faster
        expect(not isinstance(rows, str), "seek fails: %s", rows)
        self.durable = self.serial
        if session.is_open:
            session.topics.add(topic)
            session.has_xid = True
            session.has_sought = True
        self.move(group, part, target)
