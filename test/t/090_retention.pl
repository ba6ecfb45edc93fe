# Copyright (c) 2026, the Narad authors
#
# I10: what is not kept goes, also of topics nobody uses; its space is used
#      again, and the end of the file given back; a topic at rest writes no
#      WAL.
# I1:  offsets go on where they were, and groups know what they lost, after a
#      crash at any step of it, a restart, and on a standby that is promoted.
# I12: nobody takes a recycled page for what was there before.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'needs stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('primary', streaming => 1, conf => [
	"wal_consistency_checking = 'narad'", 'autovacuum = off', 'wal_keep_size = 512MB',
	'max_wal_size = 1GB', 'hot_standby_feedback = off', 'max_standby_streaming_delay = -1']);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad');
$node->safe_psql('postgres', slurp_file("$ENV{NARAD_INPUTS}/test/narad_test/narad_test.sql"));
create_helpers($node);
$node->safe_psql('postgres', q{
-- Records whose values tell where they must lie.
CREATE FUNCTION fill(topic regclass, n int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	base bigint := (SELECT end_offset FROM narad.offsets(topic) WHERE partition = 0);
BEGIN
	EXECUTE format('INSERT INTO %s (value) SELECT to_jsonb(rpad((%s + i) || ''.'', 900, ''x'')) FROM generate_series(0, %s) i', topic, base, n - 1);
	RETURN base + n;
END $$;
-- Drops all that may be dropped, or all but so many bytes; the setting does not last.
CREATE PROCEDURE drop_all(topic regclass, keep bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	IF keep IS NULL THEN
		PERFORM narad.alter_topic(topic, retention => '1 ms');
	ELSE
		PERFORM narad.alter_topic(topic, retention_bytes => keep);
	END IF;
	PERFORM pg_sleep(0.01);
	PERFORM narad.apply_retention(topic);
	ROLLBACK;
END $$;
});
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

my $bounds = q{SELECT earliest, end_offset FROM narad.offsets('%s') WHERE partition = 0};

sub bounds
{
	my ($where, $topic) = @_;
	return one_value($where, sprintf($bounds, $topic));
}

# The session that frees a topic is held at the point, and all of it is dropped.  The
# worker may be held there, too, and sooner.
sub wait_until_dropped
{
	my ($pid, $topic, $end) = @_;
	ok(poll_until('all is dropped', sub {
		bounds($node, $topic) eq "$end|$end" &&
		  one_value($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Extension' }), 'all is dropped');
	return;
}

# What is there is right, whole, and in its place.
sub is_sound
{
	my ($where, $topic, $name) = @_;
	my ($from, $to) = split(/\|/, bounds($where, $topic));
	is(one_value($where, "SELECT count(*), coalesce(bool_and((value #>> '{}') LIKE msg_offset || '.%'), true) FROM $topic"),
		($to - $from) . '|t', "$name: all records, and in their places");
	is(one_value($where, "SELECT count(*) FROM narad.fetch('$topic', 0, $from, max_messages => 100000, max_bytes => 1000000000)"),
		$to - $from, "$name: by fetch");
	is(one_value($where, "SELECT count(*), min(finding) FROM narad.verify('$topic')"), '0|', "$name: verify");
	return;
}

sub crash_and_start
{
	flush_wal($node);
	$node->stop('immediate');
	$node->start;
	return;
}

# ------------------------------------------------------------- when to look

# With cleanup 'settled' the state page that says that a segment is done with asks
# for a look, and those after it do not, if it stays for its ids, or for a group that
# is behind.  Nobody else is here whom the worker could look at.
$node->safe_psql('postgres', q{
ALTER SYSTEM SET narad.frontier_write_interval = '20ms';
SELECT pg_reload_conf();
SELECT narad.create_topic('ids', segment_size => '256kB', cleanup => 'settled', dedup_window => '1 hour');
SELECT narad.produce('ids', to_jsonb('0.'::text), dedup_id => 'first');
SELECT fill('ids', 300);
SELECT narad.create_topic('behind', segment_size => '256kB', cleanup => 'settled');
SELECT narad.create_group('behind', 'slow');
SELECT narad.ack(receipt) FROM narad.consume('behind', consumer_group => 'slow');
SELECT fill('behind', 300);
SELECT narad.ack(receipt) FROM narad.consume('behind', consumer_group => 'slow');
});
my $acks_written = q{SELECT bool_and(unpersisted_ranges = 0) FROM narad.groups};

# Is the worker held as it looks at a topic?
sub looks { return one_value($node, q{SELECT narad_test.stop_waiting('retain-begun')}) > 0; }

$node->safe_psql('postgres', qq{SELECT narad.ack(array_agg(receipt)) FROM narad.consume('$_', 150)}) foreach qw(ids behind);
ok(poll_until('the acks are written', sub { one_value($node, $acks_written) eq 't' }), 'a segment of each is settled by one group');
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm_any('retain-begun')});
foreach my $round (1 .. 3)
{
	# What was asked for before may come in the first.
	ok(poll_until('the worker has looked', sub {
		$node->safe_psql('postgres', q{SELECT narad_test.stop_release('retain-begun'); SELECT narad_test.stop_arm_any('retain-begun')});
		return !looks() }), 'the worker is through') if $round == 1;
	$node->safe_psql('postgres', qq{SELECT narad.ack(receipt) FROM narad.consume('$_')}) foreach qw(ids behind);
	ok(poll_until('the acks are written', sub { one_value($node, $acks_written) eq 't' || looks() }), "acks $round are written");
	ok(!looks(), 'and nobody looks whether anything can go') unless $round == 1;
}
$node->safe_psql('postgres', q{SELECT narad_test.stop_release('retain-begun')});
is(one_value($node, q{SELECT string_agg(topic || ' ' || earliest, ', ' ORDER BY topic::text)
	FROM narad.topics t, narad.offsets(t.topic)}), 'behind 0, ids 0', 'nothing did');
$node->safe_psql('postgres', q{SELECT narad.ack(array_agg(receipt)) FROM narad.consume('behind', 150, consumer_group => 'slow')});
ok(poll_until('it goes', sub { one_value($node, q{SELECT earliest > 0 FROM narad.offsets('behind')}) eq 't' }),
	'when the other group has settled it, too, it goes');
$node->safe_psql('postgres', q{SELECT narad.alter_topic('ids', dedup_window => '1 ms')});
ok(poll_until('it goes', sub { one_value($node, q{SELECT earliest > 0 FROM narad.offsets('ids')}) eq 't' }),
	'and when its ids need not be known');
$node->safe_psql('postgres', q{
SELECT narad.create_topic('unread', segment_size => '256kB', cleanup => 'settled');
SELECT fill('unread', 300);
SELECT narad.create_group('unread', 'late', 'latest');
});
ok(poll_until('it goes', sub { one_value($node, q{SELECT earliest > 0 FROM narad.offsets('unread')}) eq 't' }),
	'a group that starts at the end, and is the only one, lets go of what is before');
$node->safe_psql('postgres', q{
SELECT narad.drop_topic(topic) FROM narad.topics;
ALTER SYSTEM RESET narad.frontier_write_interval;
SELECT pg_reload_conf();
});

# ------------------------------------------------------------- crashes

$node->safe_psql('postgres', q{
SELECT narad.create_topic('crash', segment_size => '256kB');
SELECT narad.create_group('crash', 'g');
SELECT fill('crash', 3000);
SELECT count(*) FROM (SELECT array_agg(receipt) r FROM narad.consume('crash', 10, consumer_group => 'g')) t, narad.try_ack(r);
});
ok(poll_until('the acks are written', sub {
	one_value($node, q{SELECT sum(unpersisted_ranges) FROM narad.groups WHERE topic = 'crash'::regclass}) eq '0' }),
	'the acks are written');

# Freed, and nothing used again yet; groups in memory are not moved yet.
my $s = narad_session($node);
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('retain-freed')});
my $crash_pid = $s->backend_pid;
$s->send(q{CALL drop_all('crash')});
wait_until_dropped($crash_pid, 'crash', 3000);
crash_and_start();
is(bounds($node, 'crash'), '3000|3000', 'a crash after that: the partition knows its end');
is(one_value($node, q{SELECT msg_offset FROM narad.produce('crash', to_jsonb('3000.'::text))}), 3000, 'and goes on there');
is(one_value($node, q{SELECT count(*) FROM narad.consume('crash', 10, consumer_group => 'g')}), 1, 'the group goes on, too');
is(one_value($node, q{SELECT frontier, lost_to_retention FROM narad.groups WHERE topic = 'crash'::regclass AND consumer_group = 'g'}),
	'2999|2990', 'and knows what it lost');
is_sound($node, 'crash', 'after the crash');

# It is counted once, though the page is written only now.
ok(poll_until('the loss is written', sub {
	one_value($node, q{SELECT sum(unpersisted_ranges) FROM narad.groups WHERE topic = 'crash'::regclass}) eq '0' }),
	'the loss is written');
crash_and_start();
is(one_value($node, q{SELECT count(*) FROM narad.consume('crash', 1, consumer_group => 'g')}), 1, 'the group once more');
is(one_value($node, q{SELECT lost_to_retention FROM narad.groups WHERE topic = 'crash'::regclass AND consumer_group = 'g'}),
	'2990', 'the loss is counted once');

# Sealed for its age, and nothing freed.
$node->safe_psql('postgres', q{SELECT fill('crash', 100)});
$s = narad_session($node);
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('retain-rolled')});
$s->send(q{CALL drop_all('crash')});
$node->safe_psql('postgres', q{SELECT narad_test.stop_wait('retain-rolled')});
crash_and_start();
is(bounds($node, 'crash'), '3000|3101', 'a crash before anything is freed');
is_sound($node, 'crash', 'after that crash');
$node->safe_psql('postgres', q{CALL drop_all('crash')});
is(bounds($node, 'crash'), '3101|3101', 'dropped later');

# Recycled places, in use when the server crashes.
foreach my $round (1 .. 3)
{
	$node->safe_psql('postgres', q{SELECT fill('crash', 1500); CALL drop_all('crash', 300000);});
	crash_and_start() if $round != 2;
	is_sound($node, 'crash', "recycled, round $round");
}

# ------------------------------------------------------------- the standby

$node->wait_for_catchup($standby);
is(bounds($standby, 'crash'), bounds($node, 'crash'), 'a standby has the same bounds');
is_sound($standby, 'crash', 'on a standby');
my ($earliest) = split(/\|/, bounds($standby, 'crash'));
my ($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT narad.fetch('crash', 0, 10)");
like($err, qr/NR416.*earliest offset is $earliest/s, 'fetch below the start, on a standby');

# A scan that the primary's retention overtakes: first what is only freed, then
# what is overwritten.  The lock keeps the file from being cut, which would wait
# for the standby.
my $holder = narad_session($node);
$holder->try(q{BEGIN; LOCK TABLE crash IN ACCESS SHARE MODE});
my $reader = narad_session($standby);
$reader->try(q{BEGIN; DECLARE c CURSOR FOR SELECT msg_offset, value #>> '{}' FROM crash});
my @first = $reader->rows('FETCH 1 FROM c');
is($first[0][0], $earliest, 'a scan begins on the standby');
$node->safe_psql('postgres', q{CALL drop_all('crash'); SELECT fill('crash', 1500);});
$node->wait_for_catchup($standby);
is($reader->try('FETCH ALL FROM c'), '00000', 'it goes on when its records are dropped');
is(scalar(grep { $_->[1] !~ /^$_->[0]\./ } @{ $reader->{rows} }), 0, 'and returns nothing else for them');
like($reader->{errors}, qr/WARNING:.*retention has dropped records of topic "crash"/, 'and says so');
is(scalar(() = $reader->{errors} =~ /retention has dropped/g), 1, 'once');
$reader->try('COMMIT');
$holder->try('COMMIT');
is_sound($standby, 'crash', 'on the standby, recycled');

# ------------------------------------------------------------- the end of the file

# A scan that holds the topic keeps the file; without it, it is cut.
$node->safe_psql('postgres', q{SELECT narad.create_topic('cut', segment_size => '256kB'); SELECT fill('cut', 8000);});
my $size = one_value($node, q{SELECT pg_relation_size('cut')});
$reader = narad_session($node);
$reader->try(q{BEGIN; DECLARE c CURSOR FOR SELECT msg_offset FROM cut});
$reader->rows('FETCH 1 FROM c');
$node->safe_psql('postgres', q{CALL drop_all('cut')});
cmp_ok(one_value($node, q{SELECT pg_relation_size('cut')}), '>=', $size, 'a scan keeps the file');
is($reader->try('FETCH ALL FROM c'), '00000', 'and goes on');
$reader->try('COMMIT');

# One that comes when the file is about to be cut waits for that, no more.
$node->safe_psql('postgres', q{SELECT fill('cut', 10); SELECT narad_test.stop_arm('retain-cut');});
$s = narad_session($node);
$s->send(q{SELECT * FROM narad.apply_retention('cut')});
$node->safe_psql('postgres', q{SELECT narad_test.stop_wait('retain-cut')});
is($reader->value('SELECT count(*) FROM cut'), 10, 'a scan beside the cut');
$node->safe_psql('postgres', q{SELECT narad_test.stop_release('retain-cut')});
is($s->finish, '00000', 'the file is cut');
cmp_ok(one_value($node, q{SELECT pg_relation_size('cut')}), '<', $size / 8, 'and is small');
is($reader->value('SELECT count(*) FROM cut'), 10, 'a scan of who knew the longer file');
is_sound($node, 'cut', 'cut');
$node->wait_for_catchup($standby);
is(one_value($standby, q{SELECT pg_relation_size('cut')}), one_value($node, q{SELECT pg_relation_size('cut')}),
	'the standby\'s file is as long');
is_sound($standby, 'cut', 'cut, on the standby');
crash_and_start();
is_sound($node, 'cut', 'cut, after a crash');
$node->safe_psql('postgres', q{SELECT fill('cut', 3000)});
crash_and_start();
is_sound($node, 'cut', 'grown again, after a crash');

# A slot that was split is given up with its last segment, in a second step.  What
# a crash in between leaves of it, at the end of the file, does not keep the file.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('split', partitions => 3, segment_size => '256kB');
INSERT INTO split (partition, value) SELECT 0, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 2000) i;
INSERT INTO split (partition, value) VALUES (1, '1');
INSERT INTO split (partition, value) VALUES (2, '1');
});
$size = one_value($node, q{SELECT pg_relation_size('split')});
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('free-split-slot')});
is((try_once($node, q{CALL drop_all('split')}))[0], 'XX000', 'the slot is not given up');
crash_and_start();
is(one_value($node, q{SELECT sum(end_offset - earliest), count(*) FROM narad.offsets('split')}), '0|3', 'its segment is');
ok(poll_until('the file is cut', sub {
	$node->safe_psql('postgres', q{SELECT * FROM narad.apply_retention('split')});
	one_value($node, q{SELECT pg_relation_size('split')}) < $size / 4 }), 'and the file is cut later');
$node->safe_psql('postgres', q{INSERT INTO split (partition, value) SELECT p, to_jsonb(rpad(i::text, 900, 'x'))
	FROM generate_series(1, 30) i, generate_series(0, 2) p});
cmp_ok(one_value($node, q{SELECT pg_relation_size('split')}), '<', $size / 2, 'it grows from where it ends');
is(one_value($node, q{SELECT count(*), (SELECT count(*) FROM narad.verify('split')) FROM split}), '90|0', 'and is sound');

# Without a crash: what was freed before the error is forgotten, so that the next of
# the partition has its turn.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('half', partitions => 2, segment_size => '256kB');
INSERT INTO half (partition, value) SELECT 0, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 600) i;
SELECT narad_test.stop_arm('free-split-slot')});
is((try_once($node, q{CALL drop_all('half')}))[0], 'XX000', 'an error half way');
$node->safe_psql('postgres', q{SELECT narad_test.stop_release('free-split-slot');
INSERT INTO half (partition, value) SELECT 0, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 600) i;
CALL drop_all('half')});
is(one_value($node, q{SELECT sum(end_offset - earliest) FROM narad.offsets('half')}), 0, 'the next ones are dropped');
is(one_value($node, q{SELECT count(*) FROM narad.segments WHERE topic = 'half'::regclass AND state = 'sealed'}), 0, 'and gone');
is(one_value($node, q{SELECT count(*) FROM narad.verify('half')}), 0, 'and all is sound');

# A spare that could not be given back stays the spare.
$node->safe_psql('postgres', q{SELECT narad.create_topic('spared', segment_size => '256kB')});
my $spares = q{SELECT count(*) FROM narad.segments WHERE topic = 'spared'::regclass AND state = 'spare'};
$node->safe_psql('postgres', q{SELECT fill('spared', 8)}) until one_value($node, $spares) > 0;
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('free-spare')});
is((try_once($node, q{INSERT INTO spared (value) SELECT nt.msg('large', 1, 150000)}))[0], 'XX000',
	'a small spare is not given back for a larger one') foreach 1, 2;
is(one_value($node, $spares), 1, 'it is still there');
$node->safe_psql('postgres', q{SELECT narad_test.stop_release('free-spare')});
is((try_once($node, q{INSERT INTO spared (key, value) SELECT 'l', nt.msg('large', 1, 150000)}))[0], '00000', 'later it is');
is(one_value($node, q{SELECT bool_and(nt.msg_ok(value)), (SELECT count(*) FROM narad.verify('spared')) FROM spared WHERE key = 'l'}),
	't|0', 'and no other is left');
is(one_value($node, $spares) <= 1, 1, 'nor a second one');

# ------------------------------------------------------------- by the worker

# Of a topic that is used.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('worker', segment_size => '256kB', cleanup => 'settled', segment_age => '2 s');
SELECT fill('worker', 3000);
});
my $taken = 0;
while ($taken < 3000)
{
	$taken += one_value($node, q{
SELECT count(*) FROM (SELECT array_agg(receipt) r FROM narad.consume('worker', 500)) t, narad.try_ack(r) WHERE accepted});
}
ok(poll_until('settled segments are gone', sub {
	one_value($node, q{SELECT count(*) FROM narad.segments WHERE topic = 'worker'::regclass}) <= 2 }),
	'when all is settled, at most the open and the spare segment remain');
ok(poll_until('the last one goes', sub {
	one_value($node, q{SELECT messages FROM narad.topics WHERE topic = 'worker'::regclass}) == 0 }),
	'and when the last one is old, nothing');
is(one_value($node, q{SELECT sum(lost_to_retention) FROM narad.groups WHERE topic = 'worker'::regclass}), 0, 'nothing is lost');
is_sound($node, 'worker', 'after all is settled');

# At rest it writes nothing and grows by nothing.
my $now = '';
ok(poll_until('the server is at rest', sub {
	my $lsn = one_value($node, q{SELECT pg_current_wal_insert_lsn()});
	my $same = $lsn eq $now;
	$now = $lsn;
	sleep 1;
	return $same;
}), 'a topic at rest writes no WAL');
is(one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker' AND backend_xmin IS NULL AND xact_start IS NULL}),
	1, 'and the worker sleeps without a snapshot');

# Settings that are changed are taken up.
$node->safe_psql('postgres', q{SELECT narad.create_topic('changed', segment_size => '256kB'); SELECT fill('changed', 1000);});
$node->safe_psql('postgres', q{SELECT narad.alter_topic('changed', retention => '100 ms')});
ok(poll_until('the new setting takes effect', sub { bounds($node, 'changed') eq '1000|1000' }),
	'a shorter retention takes effect at once');

# By bytes, while it is produced to.
$node->safe_psql('postgres', q{SELECT narad.create_topic('bytes', segment_size => '256kB', retention_bytes => 1000000)});
$node->safe_psql('postgres', q{SELECT fill('bytes', 300)}) foreach 1 .. 20;
ok(poll_until('the limit is kept', sub {
	one_value($node, q{SELECT bytes FROM narad.partitions WHERE topic = 'bytes'::regclass}) < 1000000 + 4 * 262144 }),
	'bytes are limited');
cmp_ok(one_value($node, q{SELECT pg_relation_size('bytes')}), '<', 4000000, 'and the file');
is_sound($node, 'bytes', 'limited');

# Of topics that nobody has used since the start.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('elsewhere', retention => '1 h');
SELECT narad.produce('elsewhere', '1');
});
$node->stop;
$node->start;
ok(poll_until('a worker visits the other database', sub {
	one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname = 'other'}) == 1 }),
	'a database with topics has a worker after the start, though nobody uses them');
is(one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'narad worker' AND datname LIKE 'template%'}),
	0, 'and no other');
$node->safe_psql('postgres', q{
SELECT narad.create_topic('unused', segment_size => '256kB', retention => '10 s');
SELECT fill('unused', 1000);
});
$node->stop('immediate');
$node->start;
ok(poll_until('what nobody uses is dropped', sub {
	one_value($node, q{SELECT messages FROM narad.topics WHERE topic = 'unused'::regclass}) == 0 }),
	'what is old goes though nobody has used the topic since the start');
is(bounds($node, 'unused'), '1000|1000', 'and its offsets stay');

# By bytes, of which most lie in the segment that is open.
$node->safe_psql('postgres', q{SELECT narad.create_topic('mostly_open', segment_size => '256kB'); SELECT fill('mostly_open', 16 * 8 + 20 * 8);});
is(one_value($node, q{SELECT string_agg(state, ' ' ORDER BY segment_no) FROM narad.segments WHERE topic = 'mostly_open'::regclass AND state <> 'spare'}),
	'sealed sealed open', 'two small segments and one of which much is used');
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm_any('retain-begun'); SELECT narad.alter_topic('mostly_open', retention_bytes => 150000);});
$node->safe_psql('postgres', q{SELECT narad_test.stop_wait('retain-begun')});
flush_wal($node);
$node->stop('immediate');
$node->start;
ok(poll_until('the limit is kept', sub {
	one_value($node, q{SELECT messages FROM narad.topics WHERE topic = 'mostly_open'::regclass}) < 16 * 8 + 20 * 8 }),
	'a limit that is exceeded with the open segment is kept after a crash, though nobody uses the topic');

# ------------------------------------------------------------- promotion

$node->safe_psql('postgres', q{
SELECT narad.create_topic('promoted', segment_size => '256kB');
SELECT fill('promoted', 2000);
SELECT narad.create_group('promoted', 'g');
SELECT count(*) FROM (SELECT array_agg(receipt) r FROM narad.consume('promoted', 10, consumer_group => 'g')) t, narad.try_ack(r);
});
ok(poll_until('the acks are written', sub {
	one_value($node, q{SELECT sum(unpersisted_ranges) FROM narad.groups WHERE topic = 'promoted'::regclass}) eq '0' }),
	'the acks are written');
$s = narad_session($node);
$node->safe_psql('postgres', q{SELECT narad_test.stop_arm('retain-freed')});
my $promoted_pid = $s->backend_pid;
$s->send(q{CALL drop_all('promoted')});
wait_until_dropped($promoted_pid, 'promoted', 2000);
flush_wal($node);
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
is(bounds($standby, 'promoted'), '2000|2000', 'a promoted standby knows the bounds');
is(one_value($standby, q{SELECT fill('promoted', 500)}), 2500, 'and goes on there');
is(one_value($standby, q{SELECT count(*) FROM narad.consume('promoted', 10, consumer_group => 'g')}), 10, 'the group, too');
is(one_value($standby, q{SELECT lost_to_retention FROM narad.groups WHERE topic = 'promoted'::regclass AND consumer_group = 'g'}),
	1990, 'and it knows what it lost');
is_sound($standby, 'promoted', 'promoted');
$standby->safe_psql('postgres', q{SELECT fill('crash', 2000); CALL drop_all('crash', 300000); SELECT fill('crash', 2000);});
is_sound($standby, 'crash', 'recycled after promotion');
flush_wal($standby);
$standby->stop('immediate');
$standby->start;
is_sound($standby, 'crash', 'and after a crash of the promoted one');

$standby->stop;
logs_are_clean('no damage', $node, $standby);
done_testing();
